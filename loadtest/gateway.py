"""The gateway alone, over a null engine core: `python loadtest/gateway.py --help`.

A real gateway process, as `penstock gateway` starts it, between loadtest/gateway_alone's engine,
which computes nothing, and its reader, each a process of its own.  For each number of streams two
runs: as fast as it goes, a stream's next token leaving when its last one was read, so that each
token is an event of its own; and at a fixed rate, for the time from the engine's send to the
client's receipt.  A step holds --group streams at most, as the engine core's has it.  CPU is the
gateway's, all threads, between 15 % and 85 % of a run's tokens.  Results go to
results/gateway.json, .md and .png.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from loadtest.gateway_alone.measure import measure
from loadtest.report.chart import chart
from loadtest.report.facts import machine_line
from loadtest.report.files import Facts, Report, parser, say
from penstock.bench.load.report import markdown_table

PROGRAM = "loadtest/gateway.py"
RATES = {1: 100.0, 100: 5_000.0, 1_000: 10_000.0, 5_000: 10_000.0}
"""Tokens a second of all streams together, below what a gateway can."""
EXPECTED = {1: 1_500.0, 100: 20_000.0}
"""Tokens a second flat out, roughly: how many a run needs."""


def main() -> None:
    command = parser(PROGRAM, __doc__, section=True)
    command.add_argument("--streams", type=int, nargs="+", default=list(RATES))
    command.add_argument("--seconds", type=float, default=8.0, help="of a run, about")
    command.add_argument("--group", type=int, default=256, help="streams in one step, at most")
    command.add_argument("--profile", type=Path, help="one run under cProfile, data to this file")
    flags = command.parse_args()
    if flags.profile:
        measure(flags.streams[0], seconds=flags.seconds, rate=5_000.0, window=1,
                group=flags.group, profile=flags.profile)  # fmt: skip
        return
    report, rows = Report("gateway", PROGRAM, flags), []
    for streams in flags.streams:
        rows.append(both(streams, flags.seconds, flags.group))
        say(json.dumps(rows[-1]))
    report.finish(
        {"group": flags.group, "rows": rows},
        lambda facts: tables(facts, rows),
        draw=lambda path: draw(rows, path),
        section="gateway",
    )


def both(streams: int, seconds: float, group: int) -> dict[str, Any]:
    """The two runs of a row."""
    flat_out = EXPECTED.get(streams, 25_000.0)
    paced = RATES.get(streams, 10_000.0)
    return {
        "streams": streams,
        "flat_out": measure(streams, seconds=seconds, rate=flat_out, window=1, group=group),
        "paced": measure(streams, seconds=seconds, rate=paced, group=group),
        "rate": paced,
    }


FLAT_OUT = ("tokens/s", "gateway's CPU", "µs CPU/token", "tokens/s of CPU", "client's CPU")
PACED = (
    *("tokens/s", "added p50, ms", "p99, ms", "gateway's CPU", "tokens/event"),
    *("RSS ready, MiB", "streams open", "after"),
)


def tables(facts: Facts, rows: list[dict[str, Any]]) -> str:
    """A table of each of the two kinds of run."""
    ready = [row[kind] for row in rows for kind in ("flat_out", "paced")]
    seconds = min(each["ready_seconds"] for each in ready)
    cpu = min(each["ready_cpu_seconds"] for each in ready)
    return (
        f"{machine_line(facts)}\n\nFlat out, each token an event of its own:\n\n"
        + markdown_table(["streams", *FLAT_OUT], [flat_out_cells(row) for row in rows])
        + "\nAt a fixed rate:\n\n"
        + markdown_table(["streams", *PACED], [paced_cells(row) for row in rows])
        + f"\nStart to ready, the quickest of {len(ready)}: {seconds:.2f} s, {cpu:.2f} s of it "
        "CPU.\n"
    )


def flat_out_cells(row: dict[str, Any]) -> list[str]:
    run = row["flat_out"]
    return [
        f"{row['streams']:,}",
        f"{run['tokens_per_s']:,.0f}",
        f"{100 * run['cpu_share']:.0f} %",
        f"{1000 * run['cpu_seconds_per_1000_tokens']:.1f}",
        f"{1 / run['cpu_seconds_per_1000_tokens']:,.0f} k",
        f"{100 * run['client_cpu_seconds'] / run['seconds']:.0f} %",
    ]


def paced_cells(row: dict[str, Any]) -> list[str]:
    run = row["paced"]
    return [
        f"{row['streams']:,}",
        f"{row['rate']:,.0f}",
        f"{run['p50_ms']:.2f}",
        f"{run['p99_ms']:.2f}",
        f"{100 * run['cpu_share']:.0f} %",
        f"{run['tokens_per_event']:.2f}",
        *(f"{run[f'rss_{moment}_mib']:.0f}" for moment in ("ready", "open", "after")),
    ]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    names = [f"{row['streams']:,}" for row in rows]
    costs = [1000 * row["flat_out"]["cpu_seconds_per_1000_tokens"] for row in rows]
    with chart(path, columns=2, size=(9, 3.2)) as (left, right):
        left.bar(names, costs)
        left.set(xlabel="streams", ylabel="µs of CPU a token")
        for name in ("p50_ms", "p99_ms"):
            right.plot(names, [row["paced"][name] for row in rows], marker="o", label=name[:3])
        right.set(xlabel="streams", ylabel="added latency, ms", yscale="log")
        right.legend()


if __name__ == "__main__":
    main()
