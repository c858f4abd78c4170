"""One simulated run of a layout: its latencies, whether the objective holds, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest
from penstock_planning.plan.arrivals import Arrivals, Ended
from penstock_planning.plan.objective import LatencyBound
from penstock_planning.plan.work import TableWork, TrialWork
from penstock_planning.simulate.cost import StepCost, check_cost
from penstock_planning.simulate.metrics import LatencyHistogram, Metrics
from penstock_planning.simulate.replica import SimulatedDrafts
from penstock_planning.simulate.routing import make_router
from penstock_planning.simulate.simulation import Simulation, SimulationOptions
from penstock_planning.simulate.trace import TraceRequest

BUSY = 0.9
"""Cores that compute for so much of the time have no room for more."""
KEPT_UP = 0.95
"""Busy engine cores that answer fewer than this share of the arrivals may be overloaded; or the
last answers are long, or fewer came by chance."""
GROWTH = 1.5
"""Cores are overloaded if so many times as many requests are in progress later on, see Arrivals."""


class CoreLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are served, whatever the number of engine cores.

    cost: of a step.  config: the engine cores' settings.  apart: share of them that compute
    prompts of `apart_tokens` for the others.  gateway: seconds that a request takes outside of the
    engine core until its first token has arrived.  draft_tokens, acceptance: see SimulatedDrafts.
    transfer_block: seconds until a KV block is fetched from another core.  seed: of drafts, and of
    steps' spread.  cost_source: what messages call the cost."""

    config: EngineConfig
    cost: StepCost = StepCost()
    routing: str = "least-loaded"
    apart: float = 0.0
    apart_tokens: int = 512
    transfer_block: float = 0.0002
    gateway: float = 0.0
    draft_tokens: int = 0
    acceptance: float = 0.7
    seed: int = 0
    cost_source: str = "step cost"

    def prefill_cores(self, cores: int) -> int:
        """How many of `cores` compute prompts for the others."""
        if not self.apart or cores < 2:
            return 0
        return min(cores - 1, max(1, round(self.apart * cores)))

    def options(self, cores: int) -> SimulationOptions:
        return SimulationOptions(
            cost=self.cost,
            replicas=cores,
            routing=self.routing,
            seed=self.seed,
            draft_tokens=self.draft_tokens,
            acceptance=self.acceptance,
            prefill_replicas=self.prefill_cores(cores),
            prefill_tokens=self.apart_tokens,
            transfer_block=self.transfer_block,
        )


class PlanTrial(msgspec.Struct, frozen=True, kw_only=True):
    """load: how many times as fast as the traffic's own rate.  rate: requests per second that
    come; throughput: that were answered.  ttft_ms, itl_ms, e2e_ms: percentiles, by name.  bounds:
    milliseconds of what the objective names.  busy: share of the time that the cores computed.
    reused: share of prompt tokens that were in the cache.  limit: what keeps it from more, or from
    holding.  steps: that were simulated.  ended: why not all of the traffic was, see Arrivals."""

    cores: int
    prefill_cores: int
    load: float
    rate: float
    throughput: float
    tokens_per_second: float
    requests: int
    refused: int
    ttft_ms: dict[str, float | None]
    itl_ms: dict[str, float | None]
    e2e_ms: dict[str, float | None]
    bounds: dict[str, float | None]
    busy: float
    step_tokens: float
    preemptions: int
    reused: float
    holds: bool
    limit: str
    steps: int = 0
    ended: Ended = ""


PERCENTILES = (50, 90, 95, 99)


def run_trial(
    layout: CoreLayout,
    cores: int,
    requests: Iterable[TraceRequest],
    bounds: Sequence[LatencyBound],
    *,
    load: float = 1.0,
    rate: float,
    counts: Mapping[str, int] | None = None,
    table: TableWork | None = None,
    most_work: float | None = None,
    least: int = 1,
) -> PlanTrial:
    """rate: requests per second at this load.  counts, most_work, least: see Arrivals.  table: its
    work, None: without end. Raises InvalidRequest for settings that can't be simulated, WorkSpent
    if the table has no work left."""
    table = table or TableWork(math.inf)
    table.make(cores, layout.config.cache.num_kv_blocks or 0)
    simulation = Simulation(layout.config, layout.options(cores))
    work = TrialWork(table, simulation)
    arrivals = Arrivals(bounds, counts or {}, work, most_work, least)
    simulation.watch = work.look
    simulation.run(arrivals.of(simulation, requests))
    metrics = simulation.metrics
    later = {"ttft": layout.gateway, "itl": 0.0, "e2e": layout.gateway}
    found = {
        bound.name: later[bound.figure] + percentile(metrics, bound.figure, bound.percent)
        for bound in bounds
    }
    # Of nothing, as no answer had a second token, any bound holds.
    broken = [bound for bound in bounds if found[bound.name] > bound.seconds]
    tallies = [replica.tally for replica in simulation.replicas]
    seconds = max(metrics.last, 1e-9)
    busy = sum(tally.busy for tally in tallies) / (cores * seconds)
    completed = metrics.finishes.total()
    slow = busy > BUSY and completed / seconds < KEPT_UP * rate
    behind = slow and arrivals.growth > GROWTH
    holds = not broken and not metrics.rejected and not behind
    preemptions = sum(r.core.state.scheduling.num_preemptions for r in simulation.replicas)
    steps = sum(tally.steps for tally in tallies)
    return PlanTrial(
        cores=cores,
        prefill_cores=layout.prefill_cores(cores),
        load=load,
        rate=rate,
        throughput=completed / seconds,
        tokens_per_second=metrics.output_tokens / seconds,
        requests=metrics.submitted,
        refused=metrics.rejected,
        ttft_ms=_percentiles(metrics.ttft, layout.gateway),
        itl_ms=_percentiles(metrics.itl, 0.0),
        e2e_ms=_percentiles(metrics.e2e, layout.gateway),
        bounds={name: _ms(value) for name, value in found.items()},
        busy=min(busy, 1.0),
        step_tokens=sum(tally.tokens for tally in tallies) / max(steps, 1),
        preemptions=preemptions,
        reused=metrics.cached_tokens / max(metrics.prompt_tokens, 1),
        holds=holds,
        limit=_limit(simulation, busy, preemptions, found, bounds, behind=behind),
        steps=steps,
        ended=arrivals.ended,
    )


def percentile(metrics: Metrics, figure: str, percent: int) -> float:
    """Seconds; a request that was refused waits for ever. NaN of nothing."""
    histogram: LatencyHistogram = getattr(metrics, figure)
    if figure != "itl" and metrics.rejected:
        answered = 1 - metrics.rejected / max(metrics.submitted, 1)
        if percent / 100 > answered:
            return math.inf
        return histogram.percentile(percent / answered)
    return histogram.percentile(percent)


def _limit(
    simulation: Simulation,
    busy: float,
    preemptions: int,
    found: dict[str, float],
    bounds: Sequence[LatencyBound],
    *,
    behind: bool,
) -> str:
    """What there should be more of, in words; or which bound is nearest."""
    tallies = [replica.tally for replica in simulation.replicas]
    steps = max(sum(tally.busy for tally in tallies), 1e-9)
    full = sum(tally.full for tally in tallies) / steps
    short = sum(tally.short for tally in tallies) / steps
    nearest = max(bounds, key=lambda bound: _used(found[bound.name], bound))
    used = _used(found[nearest.name], nearest)
    if simulation.metrics.rejected:
        return f"{simulation.metrics.rejected:,} refused: too many, or too long"
    if used <= 1 and not behind:
        return f"{nearest.name} at {100 * used:.0f} % of its bound"
    name = nearest.name if used > 1 else "falls behind"
    if full > 0.2:
        return f"{name}: max_num_seqs (slots full {100 * full:.0f} % of the time)"
    if short > 0.1 or preemptions > simulation.metrics.submitted / 10:
        return f"{name}: KV blocks ({preemptions:,} preemptions)"
    if behind or busy > BUSY:
        return f"{name}: compute ({100 * busy:.0f} % busy)"
    if nearest.figure == "itl":
        return f"{name}: long steps (prompts among decodes)"
    return f"{name}: waits and prompts ({100 * busy:.0f} % busy)"


def _used(seconds: float, bound: LatencyBound) -> float:
    return 0.0 if math.isnan(seconds) else seconds / bound.seconds


def _percentiles(histogram: LatencyHistogram, later: float) -> dict[str, float | None]:
    return {f"p{each}": _ms(later + histogram.percentile(each)) for each in PERCENTILES}


def _ms(seconds: float) -> float | None:
    return round(1000 * seconds, 3) if math.isfinite(seconds) else None


def check_layout(layout: CoreLayout) -> None:
    """Raises InvalidRequest, which names what isn't allowed."""
    make_router(layout.routing)
    check_cost(layout.cost, layout.cost_source)
    SimulatedDrafts(layout.draft_tokens, layout.acceptance)
    if not 0.0 <= layout.apart < 1.0:
        raise InvalidRequest(f"apart must be in 0 to 1, not {layout.apart:g}", param="apart")
    if not 0.0 <= layout.gateway <= 60.0:
        raise InvalidRequest(f"--gateway-ms must be in 0 to 60000, not {1000 * layout.gateway:g}")
    if not 0.0 <= layout.transfer_block <= 1.0:
        raise InvalidRequest(
            f"--transfer-block-ms must be in 0 to 1000, not {1000 * layout.transfer_block:g}"
        )
