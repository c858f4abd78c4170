"""A plan for a terminal; its tables are Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_planning.plan.plan import CapacityPlan, WhatIf
from penstock_planning.plan.trial import PlanTrial
from penstock_planning.simulate.metrics import RESOLUTION


def as_text(plan: CapacityPlan) -> str:
    """Several lines."""
    lengths = {name: f"{round(value):,}" for name, value in plan.lengths.items()}
    settings = ", ".join(f"{name} {value}" for name, value in plan.settings.items() if value)
    parts = [
        f"Objective: {', '.join(plan.objective)}",
        f"Traffic: {plan.source}, {plan.rate:,.4g} requests/s, {plan.requests:,} of them; prompts "
        f"of {lengths['prompt_p50']} tokens at the median ({lengths['prompt_p95']} at p95), "
        f"answers of {lengths['output_p50']} ({lengths['output_p95']})",
        f"Steps: {'AN ESTIMATE, not measured: ' if plan.estimated else ''}{plan.steps}",
        f"Settings: {settings}",
        "",
        _needed(plan),
        *plan.notes,
        "",
        *_table("engine cores", "cores", plan.trials, plan.cores),
        "",
        f"Load against latency, {plan.curve[0].cores:,} engine core(s):",
        "",
        *_table("requests/s", "rate", plan.curve, None),
        "",
        _knee(plan),
    ]
    if plan.what_if:
        parts += ["", "What if:", "", *_changes(plan.what_if)]
    parts += ["", f"Times are in milliseconds, and within {100 * RESOLUTION:g} %."]
    return "\n".join(parts)


def _needed(plan: CapacityPlan) -> str:
    if plan.cores is None:
        most = max((trial.cores for trial in plan.trials), default=1)
        return f"Needed: more than the {most:,} engine core(s) that were tried."
    trial = next(trial for trial in plan.trials if trial.cores == plan.cores)
    apart = f", {trial.prefill_cores:,} of them for prompts" if trial.prefill_cores else ""
    return f"Needed: {plan.cores:,} engine core(s){apart}."


def _knee(plan: CapacityPlan) -> str:
    if plan.knee is None:
        return "The objective holds at none of these loads."
    times = plan.knee / plan.rate
    more = "" if not all(trial.holds for trial in plan.curve) else " at least"
    return (
        f"The knee: the objective holds up to{more} {plan.knee:,.4g} requests/s, {times:.2f} times "
        "the traffic."
    )


def _table(head: str, field: str, trials: Sequence[PlanTrial], chosen: float | None) -> list[str]:
    lines = [
        f"| {head} | ttft p50 | p95 | p99 | itl p50 | p95 | p99 | tokens/s | busy | holds "
        "| limit |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for trial in trials:
        value = getattr(trial, field)
        name = f"**{value:,}**" if value == chosen else f"{value:,.4g}"
        times = [trial.ttft_ms[p] for p in ("p50", "p95", "p99")]
        times += [trial.itl_ms[p] for p in ("p50", "p95", "p99")]
        cells = [name, *map(_ms, times), f"{trial.tokens_per_second:,.0f}"]
        cells += [f"{100 * trial.busy:.0f} %", "yes" if trial.holds else "no", trial.limit]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _changes(changes: Sequence[WhatIf]) -> list[str]:
    lines = ["| change | engine cores | ttft p95 | itl p95 | limit |", "|---|---:|---:|---:|---|"]
    for change in changes:
        trial = change.trial
        needed = f"{change.cores:,}" if change.cores else f"> {trial.cores:,}"
        if change.lone:
            needed = "none hold it"
        cells = [change.change, needed, _ms(trial.ttft_ms["p95"]), _ms(trial.itl_ms["p95"])]
        lines.append(f"| {' | '.join([*cells, trial.limit])} |")
    return lines


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
