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

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from loadtest.gateway_alone.measure import measure  # noqa: E402
from loadtest.report.facts import machine_line, now, run_facts  # noqa: E402
from loadtest.report.readme import README, markers, replace_section  # noqa: E402
from penstock.bench.load.report import markdown_table  # noqa: E402

PROGRAM = "loadtest/gateway.py"
RATES = {1: 100.0, 100: 5_000.0, 1_000: 10_000.0, 5_000: 10_000.0}
"""Tokens a second of all streams together, below what a gateway can."""
EXPECTED = {1: 1_500.0, 100: 20_000.0}
"""Tokens a second flat out, roughly: how many a run needs."""


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=list(RATES))
    parser.add_argument("--seconds", type=float, default=8.0, help="of a run, about")
    parser.add_argument("--group", type=int, default=256, help="streams in one step, at most")
    parser.add_argument("--output", type=Path, default=ROOT / "loadtest" / "results")
    parser.add_argument("--profile", type=Path, help="one run under cProfile, data to this file")
    parser.add_argument("--write-readme", action="store_true")
    flags = parser.parse_args()
    if flags.profile:
        measure(flags.streams[0], seconds=flags.seconds, rate=5_000.0, window=1,
                group=flags.group, profile=flags.profile)  # fmt: skip
        return
    started, rows = now(), []
    for streams in flags.streams:
        rows.append(both(streams, flags.seconds, flags.group))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    facts = run_facts(PROGRAM, sys.argv[1:], started)
    flags.output.mkdir(parents=True, exist_ok=True)
    document = {**facts, "group": flags.group, "rows": rows}
    (flags.output / "gateway.json").write_text(json.dumps(document, indent=1) + "\n")
    text = report(facts, rows)
    (flags.output / "gateway.md").write_text(text)
    draw(rows, flags.output / "gateway.png")
    if flags.write_readme:
        replace_section(README, *markers("gateway", "gateway.py"), text)
    print(text)


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


def report(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Two tables, of the two kinds of run."""
    fast, slow = [], []
    for row in rows:
        f, p = row["flat_out"], row["paced"]
        fast.append(
            [
                f"{row['streams']:,}",
                f"{f['tokens_per_s']:,.0f}",
                f"{100 * f['cpu_share']:.0f} %",
                f"{1000 * f['cpu_seconds_per_1000_tokens']:.1f}",
                f"{1 / f['cpu_seconds_per_1000_tokens']:,.0f} k",
                f"{100 * f['client_cpu_seconds'] / f['seconds']:.0f} %",
            ]
        )
        slow.append(
            [
                f"{row['streams']:,}",
                f"{row['rate']:,.0f}",
                f"{p['p50_ms']:.2f}",
                f"{p['p99_ms']:.2f}",
                f"{100 * p['cpu_share']:.0f} %",
                f"{p['tokens_per_event']:.2f}",
                f"{p['rss_ready_mib']:.0f}",
                f"{p['rss_open_mib']:.0f}",
                f"{p['rss_after_mib']:.0f}",
            ]
        )
    ready = [row[kind] for row in rows for kind in ("flat_out", "paced")]
    seconds = min(each["ready_seconds"] for each in ready)
    cpu = min(each["ready_cpu_seconds"] for each in ready)
    head = [
        "streams",
        "tokens/s",
        "gateway's CPU",
        "µs CPU/token",
        "tokens/s of CPU",
        "client's CPU",
    ]
    text = f"{machine_line(facts)}\n\nFlat out, each token an event of its own:\n\n"
    text += markdown_table(head, fast)
    head = ["streams", "tokens/s", "added p50, ms", "p99, ms", "gateway's CPU", "tokens/event"]
    head += ["RSS ready, MiB", "streams open", "after"]
    text += "\nAt a fixed rate:\n\n" + markdown_table(head, slow)
    text += (
        f"\nStart to ready, the quickest of {len(ready)}: {seconds:.2f} s, {cpu:.2f} s of it CPU.\n"
    )
    return text


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2))
    names = [f"{row['streams']:,}" for row in rows]
    left.bar(names, [1000 * row["flat_out"]["cpu_seconds_per_1000_tokens"] for row in rows])
    left.set(xlabel="streams", ylabel="µs of CPU a token")
    for name in ("p50_ms", "p99_ms"):
        right.plot(names, [row["paced"][name] for row in rows], marker="o", label=name[:3])
    right.set(xlabel="streams", ylabel="added latency, ms", yscale="log")
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
