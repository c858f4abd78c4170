"""The plan: how many engine cores, how far they can be loaded, and what if."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.config.settings import EngineConfig
from penstock.config.tree import leaves, replace_settings
from penstock.errors import InvalidRequest
from penstock_planning.plan.objective import LatencyBound
from penstock_planning.plan.search import LONE_REQUESTS, MOST_CORES, Planner, Tell, enough, knee
from penstock_planning.plan.traffic import PlanTraffic
from penstock_planning.plan.trial import CoreLayout, PlanTrial, check_layout
from penstock_planning.plan.work import TableWork, WorkSpent, remedies, table_work

OWN = {
    "routing": str,
    "apart": float,
    "apart_tokens": int,
    "draft_tokens": int,
    "acceptance": float,
}
"""Fields of a change in addition to the engine's settings and `reuse`, and their types."""

SECTIONS = ("scheduler", "cache")
MOST_CHANGES = 16

RAMP = 4
"""PlanTraffic has to last so many times as long as a lone request, or it never comes to a steady
state."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """change: as it was asked for.  cores: that hold the objective then; None: not even the most
    that were tried.  trial: of these, or of the most.  lone: what breaks the objective for a
    request that has an engine core to itself; empty: nothing."""

    change: str
    cores: int | None
    trial: PlanTrial
    lone: str = ""


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """cores: the fewest engine cores that hold the objective, or those that were given; None: no
    number up to the most that were tried.  source: of the traffic.  steps: where the step's cost is
    from.  estimated: that is not from a measurement.  lone: of requests that have an engine core
    each to themselves.  trials: by the number of cores.  curve: of `cores`, by load.  knee:
    requests per second up to which the objective holds.  notes: what to know of the figures."""

    objective: list[str]
    source: str
    rate: float
    requests: int
    lengths: dict[str, float]
    steps: str
    estimated: bool
    settings: dict[str, int | float | str]
    cores: int | None
    lone: PlanTrial
    trials: list[PlanTrial]
    curve: list[PlanTrial]
    knee: float | None
    what_if: list[WhatIf]
    notes: list[str]


class PlanTerms(msgspec.Struct, frozen=True, kw_only=True):
    """cores: that there are; None: the fewest are looked for.  most: of them.  changes: of which
    the fewest cores are looked for, too.  steps, estimated, notes: see CapacityPlan.
    all_requests: see Planner."""

    bounds: tuple[LatencyBound, ...]
    cores: int | None = None
    most: int = 64
    changes: tuple[str, ...] = ()
    steps: str = ""
    estimated: bool = False
    notes: tuple[str, ...] = ()
    all_requests: bool = True


def make_plan(
    layout: CoreLayout,
    traffic: PlanTraffic,
    terms: PlanTerms,
    tell: Tell = lambda words: None,
    lone: PlanTrial | None = None,
) -> CapacityPlan:
    """lone: of this traffic, where that is known. Raises InvalidRequest, which names what isn't
    allowed."""
    _check(layout, terms)
    changed = [(text, *_changed(text, layout, traffic)) for text in terms.changes]
    work = table_work(all_requests=terms.all_requests)
    planner = Planner(
        layout, traffic, terms.bounds, tell, all_requests=terms.all_requests, work=work, lone=lone
    )
    try:
        lone = planner.alone()
        cores = _cores(planner, terms)
        can_hold = cores is not None or planner.can_hold()
    except WorkSpent:
        raise too_much(work, traffic, terms) from None
    shown = cores or (terms.most if can_hold else 1)
    curve = planner.curve(shown)
    best = knee(curve)
    changes, missing = _what_ifs(changed, terms, tell)
    return CapacityPlan(
        objective=[str(bound) for bound in terms.bounds],
        source=traffic.name,
        rate=traffic.rate,
        requests=traffic.num_requests,
        lengths=traffic.lengths(),
        steps=terms.steps,
        estimated=terms.estimated,
        settings=_settings(layout),
        cores=cores,
        lone=lone,
        trials=planner.trials,
        curve=curve,
        knee=None if best is None else best.rate,
        what_if=changes,
        notes=[
            *terms.notes,
            *_notes(traffic, lone, planner.all_trials, hopeless=not can_hold),
            *_missing(planner, missing),
        ],
    )


def too_much(work: TableWork, traffic: PlanTraffic, terms: PlanTerms) -> InvalidRequest:
    """What is said of a plan that takes more work than its table may."""
    alone = len(work.runs) < 2
    helping = remedies(
        work.runs,
        enough=enough(terms.bounds),
        wanted=min(traffic.num_requests, LONE_REQUESTS) if alone else traffic.num_requests,
        made=traffic.is_made,
        cores=terms.cores is not None,
    )
    return InvalidRequest(
        f"this plan takes more than the worth of {work.most:,.0f} simulated steps, which is what "
        f"a plan may take. What spares most comes first: {', '.join(helping)}"
    )


def _cores(planner: Planner, terms: PlanTerms) -> int | None:
    if terms.cores is not None:
        return terms.cores if planner.at(terms.cores).holds else None
    if not planner.can_hold():
        return None
    found = planner.fewest(terms.most)
    return None if found is None else found.cores


def _what_ifs(
    changed: Sequence[tuple[str, CoreLayout, PlanTraffic]], terms: PlanTerms, tell: Tell
) -> tuple[list[WhatIf], list[str]]:
    """The changes' outcomes, and the changes for which the table had no work left."""
    work = table_work(all_requests=terms.all_requests)
    found: list[WhatIf] = []
    for text, layout, traffic in changed:
        try:
            found.append(_what_if(text, layout, traffic, terms, tell, work))
        except WorkSpent:
            break
    return found, [text for text, _, _ in changed[len(found) :]]


def _what_if(
    text: str,
    layout: CoreLayout,
    traffic: PlanTraffic,
    terms: PlanTerms,
    tell: Tell,
    work: TableWork,
) -> WhatIf:
    planner = Planner(
        layout,
        traffic,
        terms.bounds,
        lambda words: tell(f"{text}: {words}"),
        all_requests=terms.all_requests,
        work=work,
    )
    if not planner.can_hold():
        lone = planner.alone()
        return WhatIf(change=text, cores=None, trial=lone, lone=lone.limit)
    found = planner.fewest(terms.most)
    if found is None:
        return WhatIf(change=text, cores=None, trial=planner.at(terms.most))
    return WhatIf(change=text, cores=found.cores, trial=found)


def _changed(text: str, layout: CoreLayout, traffic: PlanTraffic) -> tuple[CoreLayout, PlanTraffic]:
    """Raises InvalidRequest, which names what can be changed."""
    known = {leaf.name: leaf for leaf in leaves(EngineConfig) if leaf.path[0] in SECTIONS}
    config = layout.config
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        name = name.replace("-", "_")
        try:
            if name == "reuse":
                traffic = traffic.with_reuse(share(float(value), "reuse"))
            elif name in OWN:
                layout = msgspec.structs.replace(layout, **{name: OWN[name](value)})
            elif name in known:
                config = replace_settings(config, {name: known[name].parse(value)})
            else:
                allowed = ", ".join(["reuse", *OWN, *sorted(known)])
                raise InvalidRequest(
                    f"--what-if {text[:80]!r}: no {name[:40]!r}; it takes {allowed}"
                )
        except InvalidRequest:
            raise
        except ValueError:
            raise InvalidRequest(f"--what-if {text[:80]!r}: {value[:40]!r} is no {name}") from None
    layout = msgspec.structs.replace(layout, config=config)
    check_layout(layout)
    return layout, traffic


def share(value: float, name: str) -> float:
    """Raises InvalidRequest for no share."""
    if not 0.0 <= value <= 1.0:
        raise InvalidRequest(f"{name} must be in 0 to 1, not {value:g}", param=name)
    return value


def _check(layout: CoreLayout, terms: PlanTerms) -> None:
    check_layout(layout)
    for name, value in (("--max-cores", terms.most), ("--cores", terms.cores)):
        if value is not None and not 1 <= value <= MOST_CORES:
            raise InvalidRequest(f"{name} must be in 1 to {MOST_CORES}, not {value}")
    if len(terms.changes) > MOST_CHANGES:
        raise InvalidRequest(f"--what-if: at most {MOST_CHANGES}, not {len(terms.changes)}")


def _settings(layout: CoreLayout) -> dict[str, int | float | str]:
    """The settings of the engine cores that a plan depends on most."""
    scheduler, cache = layout.config.scheduler, layout.config.cache
    return {
        "scheduling_policy": scheduler.policy,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "num_kv_blocks": cache.num_kv_blocks or 0,
        "kv_block_size": cache.kv_block_size,
        "routing": layout.routing,
        "apart": layout.apart,
        "draft_tokens": layout.draft_tokens,
    }


def ramp(traffic: PlanTraffic, lone: PlanTrial) -> int:
    """Requests that traffic should have to come to a steady state."""
    longest = (lone.e2e_ms["p95"] or 0.0) / 1000
    return round(RAMP * traffic.rate * longest)


def _missing(planner: Planner, changes: Sequence[str]) -> list[str]:
    """What is left out, as there is a bound on the work of a table."""
    found = []
    if planner.ended_early:
        found.append(
            "The curve lacks loads: it had all the work that it may take (fewer --requests)."
        )
    if changes:
        names = ", ".join(changes)
        found.append(
            f"Not simulated, as the changes before had all the work that they may take: {names}."
        )
    return found


def _notes(
    traffic: PlanTraffic, lone: PlanTrial, trials: list[PlanTrial], *, hopeless: bool
) -> list[str]:
    """hopeless: neither alone nor on the fewest cores do requests hold the objective."""
    found = []
    late = [trial for trial in trials if trial.ended == "late"]
    stopped = [trial for trial in trials if trial.ended == "work"]
    if late:
        found.append(
            f"{len(late):,} of {len(trials):,} runs ended when more requests were late than the "
            "objective allows, whatever had come after; their figures are of those that had come."
        )
    if stopped:
        counts = sorted({trial.requests for trial in stopped})
        after = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
        found.append(
            f"{len(stopped):,} of {len(trials):,} runs ended at a bound on simulated work, after "
            f"{after} of the {traffic.num_requests:,} requests (--requests N simulates N, which "
            "takes longer)."
        )
    wanted = ramp(traffic, lone)
    most = min([traffic.num_requests, *(each.requests for each in stopped if each.load == 1.0)])
    if most < wanted:
        found.append(
            f"The traffic ends before engine cores are in a steady state: {most:,} "
            f"requests, where {wanted:,} would do (--requests)."
        )
    if hopeless:
        found.append(f"No number of engine cores holds the objective: alone, {lone.limit}.")
    return found
