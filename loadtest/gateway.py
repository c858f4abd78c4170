"""The gateway alone, over a null engine core: `python loadtest/gateway.py --help`.

A real gateway process, as `penstock gateway` starts it, between loadtest/gateway_alone's engine,
which computes nothing, and its reader, each a process of its own.  For each number of streams two
runs: as fast as it goes, a stream's next token leaving when its last one was read, so that each
token is an event of its own; and at a fixed rate, for the time from the engine's send to the
client's receipt.  A step holds 256 streams at most, as the engine core's has it.  CPU is the
gateway's, all threads, between 15 % and 85 % of a run's tokens.  Results go to
results/gateway.json and .md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from loadtest.gateway_alone.measure import GROUP, measure
from loadtest.report.facts import machine_line
from loadtest.report.files import Facts, Report, parser, say
from loadtest.report.table import table

PROGRAM = "loadtest/gateway.py"
RATES = {1: 100.0, 100: 5_000.0, 1_000: 10_000.0, 5_000: 10_000.0}
"""Tokens a second of all streams together, below what a gateway can."""
EXPECTED = {1: 1_500.0, 100: 20_000.0}
"""Tokens a second flat out, roughly: how many a run needs."""


def main() -> None:
    command = parser(PROGRAM, __doc__, section=True)
    command.add_argument("--streams", type=int, nargs="+", default=list(RATES))
    command.add_argument("--seconds", type=float, default=8.0, help="of a run, about")
    command.add_argument("--profile", type=Path, help="one run under cProfile, data to this file")
    flags = command.parse_args()
    if flags.profile:
        measure(flags.streams[0], flags.seconds, rate=5_000.0, window=1, profile=flags.profile)
        return
    report, rows = Report("gateway", PROGRAM, flags), []
    for streams in flags.streams:
        rows.append(both(streams, flags.seconds))
        say(json.dumps(rows[-1]))
    report.finish(
        {"group": GROUP, "rows": rows},
        lambda facts: tables(facts, rows),
        section="gateway",
    )


def both(streams: int, seconds: float) -> dict[str, Any]:
    """The two runs of a row."""
    flat_out = EXPECTED.get(streams, 25_000.0)
    paced = RATES.get(streams, 10_000.0)
    return {
        "streams": streams,
        "flat_out": measure(streams, seconds, rate=flat_out, window=1),
        "paced": measure(streams, seconds, rate=paced),
        "rate": paced,
    }


FLAT_OUT = {
    "streams": "{streams:,}",
    "tokens/s": "{tokens_per_s:,.0f}",
    "gateway's CPU": "{cpu_percent:.0f} %",
    "µs CPU/token": "{us_per_token:.1f}",
    "tokens/s of CPU": "{k_per_cpu_s:,.0f} k",
    "client's CPU": "{client_percent:.0f} %",
}
PACED = {
    "streams": "{streams:,}",
    "tokens/s": "{rate:,.0f}",
    "added p50, ms": "{p50_ms:.2f}",
    "p99, ms": "{p99_ms:.2f}",
    "gateway's CPU": "{cpu_percent:.0f} %",
    "tokens/event": "{tokens_per_event:.2f}",
    "RSS ready, MiB": "{rss_ready_mib:.0f}",
    "streams open": "{rss_open_mib:.0f}",
    "after": "{rss_after_mib:.0f}",
}


def tables(facts: Facts, rows: list[dict[str, Any]]) -> str:
    """A table of each of the two kinds of run."""
    ready = [row[kind] for row in rows for kind in ("flat_out", "paced")]
    seconds = min(each["ready_seconds"] for each in ready)
    cpu = min(each["ready_cpu_seconds"] for each in ready)
    flat_out = [shown(row["flat_out"]) for row in rows]
    paced = [shown(row["paced"]) | {"rate": row["rate"]} for row in rows]
    return (
        f"{machine_line(facts)}\n\nFlat out, each token an event of its own:\n\n"
        f"{table(FLAT_OUT, flat_out)}\nAt a fixed rate:\n\n{table(PACED, paced)}\n"
        f"Start to ready, the quickest of {len(ready)}: {seconds:.2f} s, {cpu:.2f} s of it CPU.\n"
    )


def shown(run: dict[str, Any]) -> dict[str, Any]:
    """The run's figures, and those that follow from them."""
    cost = run["cpu_seconds_per_1000_tokens"]
    return run | {
        "us_per_token": 1000 * cost,
        "k_per_cpu_s": 1 / cost,
        "cpu_percent": 100 * run["cpu_share"],
        "client_percent": 100 * run["client_cpu_seconds"] / run["seconds"],
    }


if __name__ == "__main__":
    main()
