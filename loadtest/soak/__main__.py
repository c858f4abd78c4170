"""Many streams for a long time, through haproxy and two gateways, over a null worker.

    python -m loadtest.soak                          # 1,000 streams for 10 minutes
    python -m loadtest.soak --streams 5000 --step-seconds 2
    python -m loadtest.soak --streams 50 --seconds 20 --output /tmp/soak

Streams that end are replaced, so that as many are always open; of each every word is checked. The
engine core, the gateways and haproxy are the real ones. Two generations of streams come before what
counts: by then every buffer, arena and pool has been used. Exit code 1 where a stream was lost, or
a process grew by 2 % or more after that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from deploy.local import NotThere
from loadtest.report.facts import now, run_facts
from loadtest.soak.client import Shape, Soak
from loadtest.soak.memory import Memory
from loadtest.soak.report import chart, markdown, passed
from penstock_gateway.process import raise_file_limit
from testing.system import System, balanced

RESULTS = Path(__file__).resolve().parents[1] / "results"
MOST_SEQUENCES = 4096
BLOCKS_EACH = 12
"""KV blocks for a stream: more than streams hold on average, and so few that what is kept of ended
ones fills the rest within a minute."""
STREAM_SECONDS = (30.0, 120.0)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.soak", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--streams", type=int, default=1000, help="open at a time")
    parser.add_argument("--seconds", type=float, default=600.0, help="of replacing what ends")
    parser.add_argument(
        "--warm-up", type=float, metavar="SECONDS", help="before them; default: twice --longest"
    )
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--step-seconds", type=float, default=0.5, help="between a stream's tokens")
    parser.add_argument("--longest", type=float, default=STREAM_SECONDS[1], help="stream, seconds")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.warm_up is None:
        options.warm_up = 2 * options.longest
    raise_file_limit()
    started = now()
    try:
        with tempfile.TemporaryDirectory(prefix="pst-") as folder:
            figures, samples = measure(Path(folder), options)
    except NotThere as missing:
        print(f"loadtest.soak: {missing}", file=sys.stderr)
        return 2
    facts = run_facts("-m loadtest.soak", sys.argv[1:], started)
    options.output.mkdir(parents=True, exist_ok=True)
    document = {**facts, "figures": figures, "samples": samples}
    (options.output / "soak.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.output / "soak.md").write_text(markdown(facts, figures))
    chart(figures, samples, options.output / "soak.png")
    print(markdown(facts, figures))
    return 0 if passed(figures) else 1


def measure(folder: Path, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures, and what they are made of: a sample each second."""
    flags = ["--max-num-seqs", str(min(options.streams, MOST_SEQUENCES))]
    flags += ["--max-num-batched-tokens", "16384", "--max-waiting-requests", "100000"]
    flags += ["--num-kv-blocks", str(BLOCKS_EACH * options.streams)]
    step, whole = options.step_seconds, options.warm_up + options.seconds
    shortest = min(STREAM_SECONDS[0], options.longest / 4)
    shape = Shape(options.streams, max(2, round(shortest / step)), round(options.longest / step))
    with balanced(folder, options.gateways, step_seconds=step, engine_flags=flags) as system:
        soak, memory, seconds = uvloop.run(run(system, shape, whole))
    score = soak.score
    figures: dict[str, Any] = {
        "streams": options.streams,
        "seconds": options.seconds,
        "warm_up": options.warm_up,
        "gateways": options.gateways,
        "step_seconds": step,
        "tokens_of_a_stream": [shape.shortest, shape.longest],
        "begun": score.begun,
        "whole": score.whole,
        "lost": score.lost,
        "losses": score.losses,
        "bytes": score.bytes,
        "tokens_per_s": score.tokens / seconds,
        "longest_gap_s": score.longest_gap,
        "fewest_open": memory.fewest_open(options.warm_up),
        "memory": {},
    }
    for name in memory.rss:
        early, late, growth = memory.drift(name, options.warm_up, whole)
        figures["memory"][name] = {"early_mib": early, "late_mib": late, "growth": growth}
    rss = {name: [round(v, 2) for v in values] for name, values in memory.rss.items()}
    samples = {"at": [round(at, 2) for at in memory.at], "open": memory.open, "rss_mib": rss}
    return figures, samples


async def run(system: System, shape: Shape, seconds: float) -> tuple[Soak, Memory, float]:
    """Also the seconds until the last stream had ended."""
    if system.balancer is None:
        raise ValueError("the system has no load balancer")
    soak, memory = Soak(system.balancer.port, shape), Memory()
    begun = time.monotonic()
    watching = asyncio.create_task(
        memory.watch(system.pids, lambda: len(soak.open), seconds), name="memory"
    )
    await soak.run(begun + seconds)
    await watching
    return soak, memory, time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
