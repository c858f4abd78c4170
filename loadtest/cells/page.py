"""The page and the chart of the simulation of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.report import Document, chart, machine_line, markdown_table, sections

COLOURS = {
    "hashed": "tab:blue",
    "hashed-coarsely": "tab:cyan",
    "one-router": "tab:green",
    "round-robin": "tab:red",
}
SKIPPED = ("warm-up", "after")


def text(document: Document) -> str:
    """The page."""
    day, scaled = document["day"], document["scaled"]
    requests = day[0]["requests"]
    processor = sum(
        run["cpu_seconds"] for run in [*day, *scaled, *document["twins"], *document["named"]]
    )
    slowest = max([*day, *document["named"]], key=lambda run: float(run["cpu_seconds"]))
    return sections(
        [
            "# A thousand engine cores in cells",
            machine_line(document),
            f"{document['cells']} cells of {document['replicas']} engine cores, in virtual time: "
            f"{requests:,} requests of chats and agents; of 40 tenants, 11 name no session. "
            "An engine core is two cores of a Xeon with AMX and a model of 0.5 B parameters, with "
            "steps as they were recorded there. Everything together took "
            f"{processor:,.0f} s of the processor, the longest run ({slowest['title']}) "
            f"{slowest['cpu_seconds']:,.0f} s.",
            HOW,
            "![First tokens and prefix hits over time](cells.png)",
            "## What happens",
            WINDOWS,
            *(_window(day, name) for name in _names(day)),
            "## If all tenants name their sessions",
            "The same, but that no tenant as a whole belongs to one cell.",
            _named(document["named"]),
            "## Scaling",
            f"{scaled[0]['cells']} cells of at most {scaled[0]['replicas']} engine cores; each "
            "begins with 5, and after 90 s all tenants come three times as often. KEDA looks every "
            "15 s, and wants an engine core for 4 open requests; a cell at most doubles within a "
            "minute. With one router, it looks at all cells together. Lag: from then until an "
            "engine core is there.",
            _scaling(scaled),
            "## How right it is",
            "The same traffic on 4 × 4 engine cores, by the production engine core, step by step, "
            "and by the model that takes all steps between two changes at once.",
            _twins(document["twins"]),
            f"Step cost: `{document['step_cost']}`, from four rates of "
            "[machines](machines/intel-r-xeon-r-processor-family-6-model-207.md). Rates that it "
            "was not made from: "
            + "; ".join(
                f"{name}: {found:.0f} tokens/s recorded, {expected:.0f} by it"
                for name, (found, expected) in document["recorded"].items()
            )
            + ".",
            "## Commands",
            "```sh\n" + "\n".join(document["commands"]) + "\n```",
        ]
    )


HOW = """
- **hashed**: consistent hashing as in `deploy/haproxy/cells.cfg`: by session, else by tenant,
  1,024 points of each cell on the circle, and a cell with twice the mean load hands on what comes
  next. Tenants without sessions have 23 % of the traffic; the largest has 5.5 %, 1.8 cells' share.
- **hashed-coarsely**: the same with 16 points of each cell, as haproxy has without weights.
- **one-router**: every gateway knows every engine core, as within one cell.
- **round-robin**: cells in turn.

Within a cell, and for one-router among all, the gateways' own code chooses the engine core. Loads
are known at once; in a real cell, they are up to a beat old.
""".strip()

WINDOWS = """
- **calm**: nothing.
- **upgrade**: each cell replaces its engine cores, four at a time, each away for 15 s.
- **lost**: one cell is gone for 60 s. Its requests go on elsewhere after a second.
- **tenfold**: a tenant that names no session, with 3.5 % of the traffic, comes ten times as often.

Milliseconds, p50 and p95, of requests that came meanwhile, of tenfold also of those after it. What
the lost cell had open had come before, and so went on elsewhere under *upgrade*. Tenants: p95 of
the first token, of the median tenant and of the worst one (without the one that grows). Fairness:
Jain's index of the tenants' mean first tokens, 1 if all wait alike. Most of a cell: requests of the
cell with most, over the mean.
""".strip()

Row = tuple[str, Callable[[dict[str, Any]], str]]


def _pair(one: float | None, other: float | None, digits: int = 0) -> str:
    return " · ".join("–" if each is None else f"{each:,.{digits}f}" for each in (one, other))


ROWS: tuple[Row, ...] = (
    ("prefix hits", lambda w: f"{100 * w['prefix_hits']:.1f} %"),
    ("first token, ms", lambda w: _pair(w["first_token"]["p50"], w["first_token"]["p95"])),
    ("each further token, ms", lambda w: _pair(w["per_token"]["p50"], w["per_token"]["p95"], 1)),
    ("tenants", lambda w: _pair(w["tenant_p95_median"], w["tenant_p95_worst"])),
    ("fairness", lambda w: f"{w['fairness']:.2f}"),
    ("the tenant that grows", lambda w: _pair(*w["grown_first_token"].values())),
    ("went on elsewhere", lambda w: f"{w['moved']:,}"),
    ("most of a cell", lambda w: f"{w['most_of_a_cell']:.2f}"),
)


def _names(runs: Sequence[dict[str, Any]]) -> list[str]:
    return [w["name"] for w in runs[0]["windows"] if w["name"] not in SKIPPED]


def _of(run: dict[str, Any], name: str) -> dict[str, Any]:
    return next(dict(window) for window in run["windows"] if window["name"] == name)


def _window(runs: Sequence[dict[str, Any]], name: str) -> str:
    heads = [name, *(run["title"] for run in runs)]
    rows = [[title, *(show(_of(run, name)) for run in runs)] for title, show in ROWS]
    return markdown_table(heads, rows)


def _named(runs: Sequence[dict[str, Any]]) -> str:
    heads = ["", *(run["title"] for run in runs)]
    rows = []
    for name in _names(runs):
        for title, show in (ROWS[0], ROWS[1], ROWS[4], ROWS[7]):
            rows.append([f"{name}: {title}", *(show(_of(run, name)) for run in runs)])
    return markdown_table(heads, rows)


def _scaling(runs: Sequence[dict[str, Any]]) -> str:
    heads = ["cells chosen by, lag", "before", "150 s from then", "after"]
    heads = [f"{each}: first token, ms" if number else each for number, each in enumerate(heads)]
    rows = []
    for run in runs:
        windows = [_of(run, name)["first_token"] for name in ("before", "swell", "after")]
        rows.append([run["title"], *(_pair(each["p50"], each["p95"]) for each in windows)])
    return markdown_table(heads, rows)


def _twins(runs: Sequence[dict[str, Any]]) -> str:
    heads = ["", "engine core", *(title for title, _ in ROWS[:4]), "steps", "processor, s"]
    rows = []
    for run in runs:
        window = run["windows"][0]
        which = "model" if run["steps_at_once"] else "production"
        figures = [show(window) for _, show in ROWS[:4]]
        steps = f"{run['steps']:,}"
        rows.append([run["title"], which, *figures, steps, f"{run['cpu_seconds']:.1f}"])
    return markdown_table(heads, rows)


def draw(path: Path, document: Document) -> None:
    """First tokens and prefix hits over time, and first tokens while cells are scaled."""
    with chart(path, 2, 2, size=(12, 8)) as axes:
        day, scaled = document["day"], document["scaled"]
        p95 = _latency("first_token", "p95")
        _lines(axes[0][0], day, p95, "p95 of the first token, s", COLOURS)
        _lines(axes[0][1], day, lambda w: 100 * w["prefix_hits"], "prefix hits, %", COLOURS)
        _lines(
            axes[1][0], day, _latency("first_token", "p50"), "p50 of the first token, s", COLOURS
        )
        colours = {run["title"]: COLOURS[run["across"]] for run in scaled}
        _lines(axes[1][1], scaled, p95, "p95 of the first token, s, scaling", colours)
        for panel in (axes[0][0], axes[1][0], axes[1][1]):
            panel.set_yscale("log")
            for axis in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
                axis("{x:g}")
        for panel in (axes[0][0], axes[0][1], axes[1][0]):
            _events(panel, day[0]["windows"])


def _latency(which: str, percentile: str) -> Callable[[dict[str, Any]], float]:
    def of(window: dict[str, Any]) -> float:
        value = window[which][percentile]
        return float("nan") if value is None else value / 1000

    return of


def _lines(
    panel: Any,
    runs: Sequence[dict[str, Any]],
    value: Callable[[dict[str, Any]], float],
    label: str,
    colours: dict[str, str],
) -> None:
    most = max(w["requests"] for run in runs for w in run["series"])
    for run in runs:
        # When sessions run out, the few requests that are left say little.
        series = [w for w in run["series"] if w["requests"] >= most / 10]
        times = [(w["begin"] + w["end"]) / 2 for w in series]
        style = ":" if run["title"].endswith(", 0 s") else "-"
        title = run["title"]
        panel.plot(times, [value(w) for w in series], style, label=title, color=colours[title])
    panel.set_xlabel("seconds of virtual time at which requests came", fontsize=9)
    panel.set_ylabel(label, fontsize=9)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)


def _events(panel: Any, windows: Sequence[dict[str, Any]]) -> None:
    for window in windows[1:]:
        panel.axvline(window["begin"], color="grey", linewidth=0.6)
        if window["name"] not in SKIPPED:
            panel.text(
                window["begin"] + 2,
                0.98,
                window["name"],
                transform=panel.get_xaxis_transform(),
                fontsize=8,
                va="top",
                color="dimgrey",
            )
