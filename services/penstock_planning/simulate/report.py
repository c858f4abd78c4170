"""A run in figures: as a struct for JSON, and as a table to read."""

from __future__ import annotations

import math

import msgspec

from penstock_planning.simulate.metrics import RESOLUTION, LatencyHistogram
from penstock_planning.simulate.simulation import Simulation

PERCENTILES = (50, 90, 99)


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds; None where there was nothing."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    count: int


class TenantReport(msgspec.Struct, frozen=True, kw_only=True):
    completed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: Latency
    e2e: Latency


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """seconds: simulated, from the first arrival's clock to the last end. Rates are per simulated
    second, simulated_requests_per_wall_second aside.  slo_attainment: share of all requests,
    refused ones included, that met both bounds.  swapped_out, swapped_in: blocks that went to the
    host tier and came back; prefetched: of the latter, those that came before their session.
    disk_blocks_read, disk_blocks_prefetched: the same of those that were read from disk, or of
    another replica.  computed_ahead: prompts that one replica computed for another.
    digest: equal for equal runs."""

    requests: int
    completed: int
    rejected: int
    finishes: dict[str, int]
    seconds: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    ttft: Latency
    itl: Latency
    e2e: Latency
    slo_ttft_ms: float
    slo_itl_ms: float
    slo_attainment: float
    steps: int
    preemptions: int
    drafted_tokens: int
    kept_tokens: int
    adapter_loads: int
    swapped_out: int
    swapped_in: int
    prefetched: int
    disk_blocks_read: int
    disk_blocks_prefetched: int
    computed_ahead: int
    worker_deaths: int
    replicas: int
    checks: int
    tenants: dict[str, TenantReport]
    digest: str
    wall_seconds: float
    cpu_seconds: float
    simulated_requests_per_wall_second: float


def report_of(simulation: Simulation) -> SimulationReport:
    metrics, options = simulation.metrics, simulation.options
    cores = [replica.core.state.scheduling for replica in simulation.replicas]
    counts = [replica.core.state.counts for replica in simulation.replicas]
    completed = metrics.finishes["stop"] + metrics.finishes["length"]
    seconds, wall = metrics.last, simulation.wall_seconds
    return SimulationReport(
        requests=metrics.submitted,
        completed=completed,
        rejected=metrics.rejected,
        finishes=dict(sorted(metrics.finishes.items())),
        seconds=seconds,
        prompt_tokens=metrics.prompt_tokens,
        output_tokens=metrics.output_tokens,
        cached_tokens=metrics.cached_tokens,
        requests_per_second=_share(completed, seconds),
        output_tokens_per_second=_share(metrics.output_tokens, seconds),
        ttft=latency(metrics.ttft),
        itl=latency(metrics.itl),
        e2e=latency(metrics.e2e),
        slo_ttft_ms=1000 * options.slo_ttft,
        slo_itl_ms=1000 * options.slo_itl,
        slo_attainment=_share(metrics.met, metrics.submitted),
        steps=sum(core.num_steps for core in cores),
        preemptions=sum(core.num_preemptions for core in cores),
        drafted_tokens=sum(each.drafted_tokens for each in counts),
        kept_tokens=sum(each.kept_tokens for each in counts),
        adapter_loads=sum(each.adapters_loaded for each in counts),
        swapped_out=sum(core.cache.num_swapped_out for core in cores if core.cache is not None),
        swapped_in=sum(core.cache.num_swapped_in for core in cores if core.cache is not None),
        prefetched=sum(each.prefetched["host"] for each in counts),
        disk_blocks_read=sum(each.disk_blocks_read for each in counts),
        disk_blocks_prefetched=sum(each.prefetched["disk"] for each in counts),
        computed_ahead=simulation.apart.num_computed,
        worker_deaths=simulation.deaths,
        replicas=len(cores),
        checks=simulation.checks,
        tenants={
            name: TenantReport(
                completed=tenant.completed,
                prompt_tokens=tenant.prompt_tokens,
                cached_tokens=tenant.cached_tokens,
                output_tokens=tenant.output_tokens,
                ttft=latency(tenant.ttft),
                e2e=latency(tenant.e2e),
            )
            for name, tenant in sorted(metrics.tenants.items())
        },
        digest=metrics.digest(),
        wall_seconds=wall,
        cpu_seconds=simulation.cpu_seconds,
        simulated_requests_per_wall_second=_share(metrics.submitted, wall),
    )


def latency(histogram: LatencyHistogram) -> Latency:
    def of(value: float) -> float | None:
        return None if math.isnan(value) else 1000 * value

    p50, p90, p99 = (of(histogram.percentile(percent)) for percent in PERCENTILES)
    return Latency(of(histogram.mean), p50, p90, p99, histogram.count)


def as_text(report: SimulationReport) -> str:
    """The report for a terminal; Markdown."""
    lines = [
        f"{report.requests:,} requests in {_duration(report.seconds)} on {report.replicas:,} "
        f"replica(s): {report.completed:,} completed, {report.rejected:,} refused",
        f"throughput: {report.requests_per_second:,.3f} requests/s, "
        f"{report.output_tokens_per_second:,.1f} output tokens/s",
        f"SLO (first token ≤ {report.slo_ttft_ms:g} ms, between tokens ≤ {report.slo_itl_ms:g} ms "
        f"on average): met by {100 * report.slo_attainment:.2f} %",
        f"preemptions: {report.preemptions:,}; workers died: {report.worker_deaths:,}; "
        "prompt tokens from the prefix index: "
        f"{100 * _share(report.cached_tokens, report.prompt_tokens):.1f} %; "
        f"steps: {report.steps:,}",
        "",
        f"| ms (± {100 * RESOLUTION:g} %) | mean | p50 | p90 | p99 |",
        "|---|---:|---:|---:|---:|",
        _row("to the first token", report.ttft),
        _row("between tokens", report.itl),
        _row("end to end", report.e2e),
    ]
    if report.drafted_tokens:
        kept = 100 * _share(report.kept_tokens, report.drafted_tokens)
        lines.insert(4, f"drafted tokens: {report.drafted_tokens:,}, {kept:.1f} % of them kept")
    if report.adapter_loads:
        lines.insert(4, f"adapters loaded: {report.adapter_loads:,} times")
    if report.computed_ahead:
        lines.insert(
            4,
            f"prompts computed by one replica for another: {report.computed_ahead:,}; blocks "
            f"fetched: {report.disk_blocks_read:,}",
        )
    elif report.disk_blocks_read:
        lines.insert(
            4,
            f"blocks read from disk: {report.disk_blocks_read:,}, of which prefetched for a "
            f"session: {report.disk_blocks_prefetched:,}",
        )
    if report.swapped_out:
        lines.insert(
            4,
            f"blocks swapped out to the host: {report.swapped_out:,}; swapped in: "
            f"{report.swapped_in:,}, of which prefetched for a session: {report.prefetched:,}",
        )
    for name, tenant in report.tenants.items():
        lines.append(_row(f"{name}: to the first token ({tenant.completed:,})", tenant.ttft))
    others = {name: n for name, n in report.finishes.items() if name not in ("stop", "length")}
    if others:
        lines.append(f"\nended otherwise: {others}")
    lines += [
        "",
        f"digest {report.digest}; invariants checked {report.checks:,} times; "
        f"{report.simulated_requests_per_wall_second:,.0f} requests per second of wall time "
        f"({report.wall_seconds:.1f} s, of the processor {report.cpu_seconds:.1f} s)",
    ]
    return "\n".join(lines)


def _row(name: str, latency: Latency) -> str:
    values = (latency.mean, latency.p50, latency.p90, latency.p99)
    cells = " | ".join("–" if value is None else f"{value:,.1f}" for value in values)
    return f"| {name} | {cells} |"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 7200 else f"{seconds:,.1f} s"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
