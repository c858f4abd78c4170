"""A simulation of cells in figures: as a struct for JSON, and as a table to read."""

from __future__ import annotations

import msgspec

from penstock_planning.cells.figures import WindowReport
from penstock_planning.cells.simulation import CellsSimulation
from penstock_planning.cells.traffic import MixedTraffic, tenant_name


class CellsReport(msgspec.Struct, frozen=True, kw_only=True):
    """moved: times that a request had to go on at another engine core.  steps: of all engine cores.
    digest: equal for equal runs."""

    cells: int
    replicas: int
    across: str
    steps_at_once: bool
    requests: int
    seconds: float
    moved: int
    steps: int
    events: int
    windows: list[WindowReport]
    series: list[WindowReport]
    digest: str
    cpu_seconds: float


def cells_report(simulation: CellsSimulation, traffic: MixedTraffic | None = None) -> CellsReport:
    """traffic: what was simulated, if it has a tenant that grows."""
    options = simulation.options
    grown = tenant_name(traffic.grown) if traffic is not None and traffic.grows > 1 else ""
    return CellsReport(
        cells=options.cells,
        replicas=options.replicas,
        across=options.across,
        steps_at_once=options.steps_at_once,
        requests=simulation.ended,
        seconds=simulation.now,
        moved=simulation.lost,
        steps=simulation.fleet.num_steps,
        events=simulation.events,
        windows=[window.report(grown, options.cells) for window in simulation.windows],
        series=[window.report(grown, options.cells) for window in simulation.series],
        digest=simulation.digest(),
        cpu_seconds=simulation.cpu_seconds,
    )


def cells_text(report: CellsReport) -> str:
    """The report for a terminal; Markdown."""
    how = "modelled, many steps at once" if report.steps_at_once else "the production one's steps"
    lines = [
        f"{report.requests:,} requests in {report.seconds:,.1f} s on {report.cells:,} × "
        f"{report.replicas:,} engine cores ({how}), cells chosen by {report.across}: "
        f"{report.moved:,} moved; {report.steps:,} steps in {report.events:,} events",
        "",
        "| requests from | number | prefix hits | first token, p50 and p95, ms | a token, p50 and "
        "p95, ms | tenants' p95, median and worst, ms | fairness | moved | refused | most of a "
        "cell, of the mean |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for window in report.windows:
        first, each = window.first_token, window.per_token
        cells = [
            f"{window.name}, {window.begin:g} s",
            f"{window.requests:,}",
            f"{100 * window.prefix_hits:.1f} %",
            both(first.p50, first.p95),
            both(each.p50, each.p95, 1),
            both(window.tenant_p95_median, window.tenant_p95_worst),
            f"{window.fairness:.2f}",
            f"{window.moved:,}",
            f"{window.refused:,}",
            f"{window.most_of_a_cell:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"digest {report.digest}; {report.cpu_seconds:.1f} s of the processor"]
    return "\n".join(lines)


def both(one: float | None, other: float | None, digits: int = 0) -> str:
    """Two figures of a cell; – for one that there is not."""
    return ", ".join("–" if each is None else f"{each:,.{digits}f}" for each in (one, other))
