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
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from deploy.local import NotThere
from loadtest.report.files import Report, parser, say
from loadtest.report.memory import Memory, draw
from loadtest.soak.client import Shape, Soak
from loadtest.soak.report import markdown, passed
from penstock_gateway.process import raise_file_limit
from testing.system import System, balanced

PROGRAM = "-m loadtest.soak"
MOST_SEQUENCES = 4096
BLOCKS_EACH = 12
"""KV blocks for a stream: more than streams hold on average, and so few that what is kept of ended
ones fills the rest within a minute."""
STREAM_SECONDS = (30.0, 120.0)
WINDOW = 60.0
"""Seconds at the beginning and at the end whose medians are compared."""


def main() -> int:
    command = parser(PROGRAM, __doc__.splitlines()[0])
    command.add_argument("--streams", type=int, default=1000, help="open at a time")
    command.add_argument("--seconds", type=float, default=600.0, help="of replacing what ends")
    command.add_argument(
        "--warm-up", type=float, metavar="SECONDS", help="before them; default: twice --longest"
    )
    command.add_argument("--gateways", type=int, default=2)
    command.add_argument("--step-seconds", type=float, default=0.5, help="between two tokens")
    command.add_argument("--longest", type=float, default=STREAM_SECONDS[1], help="stream, seconds")
    options = command.parse_args()
    if options.warm_up is None:
        options.warm_up = 2 * options.longest
    raise_file_limit()
    report = Report("soak", PROGRAM, options)
    try:
        with tempfile.TemporaryDirectory(prefix="pst-") as folder:
            figures, memory = measure(Path(folder), options)
    except NotThere as missing:
        say(f"loadtest.soak: {missing}")
        return 2
    samples = {"at": memory.at, "open": memory.open, "rss_mib": memory.rss}
    report.finish(
        {"figures": figures, "samples": samples},
        lambda facts: markdown(facts, figures),
        draw=lambda path: draw(memory, options.warm_up, path),
    )
    return 0 if passed(figures) else 1


def measure(folder: Path, options: argparse.Namespace) -> tuple[dict[str, Any], Memory]:
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
        name: getattr(options, name)
        for name in ("streams", "seconds", "warm_up", "gateways", "step_seconds")
    }
    figures |= {
        name: getattr(score, name) for name in ("begun", "whole", "lost", "losses", "bytes")
    }
    figures |= {
        "tokens_of_a_stream": [shape.shortest, shape.longest],
        "tokens_per_s": score.tokens / seconds,
        "longest_gap_s": score.longest_gap,
        "fewest_open": memory.fewest_open(options.warm_up),
        "memory": memory.growths(options.warm_up, WINDOW),
    }
    return figures, memory


async def run(system: System, shape: Shape, seconds: float) -> tuple[Soak, Memory, float]:
    """Also the seconds until the last stream had ended."""
    if system.balancer is None:
        raise ValueError("the system has no load balancer")
    soak, memory = Soak(system.balancer.port, shape), Memory()
    begun = time.monotonic()
    watching = asyncio.create_task(
        memory.watch(lambda: system.pids, seconds, lambda: len(soak.open)), name="memory"
    )
    await soak.run(begun + seconds)
    await watching
    return soak, memory, time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
