"""Many streams for a long time, through haproxy and two gateways, over a null worker.

    python -m loadtest.soak                          # 1,000 streams for 10 minutes
    python -m loadtest.soak --streams 5000 --step-seconds 2
    python -m loadtest.soak --streams 50 --seconds 20 --longest 10 --output FOLDER

Two generations of streams come before what counts: by then every buffer, arena and pool has been
used. Exit code 1 where a stream was lost, or a process grew by 2 % or more after that; 2 without
haproxy.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from loadtest.report import Document, Flags, Measurement, listed, machine_line, sections
from loadtest.report.memory import Memory, draw, growth_table
from penstock.net.listener import raise_file_limit
from testing.streams.reading import connected
from testing.streams.timed import Streams, Tally
from testing.system import System, balanced
from testing.words import text

GATEWAYS = 2
MOST_SEQUENCES = 4096
BLOCKS_EACH = 12
"""KV blocks for a stream: more than streams hold on average, and so few that what is kept of ended
ones fills the rest within a minute."""
STREAM_SECONDS = (30.0, 120.0)
WINDOW = 60.0
"""Seconds at the beginning and at the end whose medians are compared."""
SILENCE = 60.0
"""Seconds without a byte after which a stream counts as lost."""
OPENING = 500
"""New streams a second at the beginning."""
ALLOWED_DRIFT = 0.02


@dataclass(frozen=True)
class Shape:
    streams: int  # open at a time
    shortest: int  # tokens of a stream
    longest: int  # tokens of a stream

    def body(self, seed: int) -> dict[str, Any]:
        return {"prompt": f"Stream {seed} says:", "max_tokens": self.tokens(seed)}

    def text(self, seed: int) -> str:
        return text(seed, self.tokens(seed))

    def tokens(self, seed: int) -> int:
        """Tokens of that stream: any length, evenly, and no neighbours alike."""
        return self.shortest + 37 * seed % (self.longest - self.shortest + 1)


def measure(options: Flags) -> Document:
    """Figures, and what they are made of: a sample each second."""
    raise_file_limit()
    warm_up, step = 2 * options.longest, options.step_seconds
    flags = ["--max-num-seqs", str(min(options.streams, MOST_SEQUENCES))]
    flags += ["--max-num-batched-tokens", "16384", "--max-waiting-requests", "100000"]
    flags += ["--num-kv-blocks", str(BLOCKS_EACH * options.streams)]
    shortest = min(STREAM_SECONDS[0], options.longest / 4)
    shape = Shape(options.streams, max(2, round(shortest / step)), round(options.longest / step))
    with (
        tempfile.TemporaryDirectory(prefix="pst-") as folder,
        balanced(Path(folder), GATEWAYS, step_seconds=step, engine_flags=flags) as system,
    ):
        heard, memory, seconds = uvloop.run(run(system, shape, warm_up + options.seconds))
    figures = {
        "streams": options.streams,
        "seconds": options.seconds,
        "warm_up": warm_up,
        "gateways": GATEWAYS,
        "step_seconds": step,
        "begun": heard.begun,
        "whole": heard.whole,
        "lost": heard.refused + heard.broken,
        "losses": heard.problems,
        "tokens_of_a_stream": [shape.shortest, shape.longest],
        "tokens_per_s": heard.tokens / seconds,
        "longest_gap_s": max(heard.gaps, default=0.0),
        "fewest_open": memory.fewest_open(warm_up),
        "memory": memory.growths(warm_up, WINDOW),
    }
    return {"figures": figures, "samples": memory.samples()}


async def run(system: System, shape: Shape, seconds: float) -> tuple[Tally, Memory, float]:
    """Returns the tally, the processes' memory, and the seconds until the last stream had ended."""
    memory, begun = Memory(), time.monotonic()
    async with connected(system.url, shape.streams, timeout=SILENCE) as client:
        client.headers["connection"] = "close"  # Each stream has a connection of its own.
        streams = Streams(client, shape.body, shape.text)
        watching = memory.watch(lambda: system.pids, seconds, lambda: len(streams.since))
        async with asyncio.TaskGroup() as group:
            group.create_task(watching)
            for _ in range(shape.streams):
                group.create_task(streams.repeat(begun + seconds))
                await asyncio.sleep(1 / OPENING)
    return streams.tally, memory, time.monotonic() - begun


def passed(figures: dict[str, Any]) -> bool:
    """No stream lost, and no process grew by more than it may."""
    grown = [each["growth"] for each in figures["memory"].values()]
    return figures["lost"] == 0 and all(growth < ALLOWED_DRIFT for growth in grown)


WORDS = """
{streams:,} streams at a time for {seconds:g} s, after {warm_up:g} s of warming up, through haproxy
and {gateways} gateways: {begun:,} begun, {whole:,} whole, {lost} lost; never fewer than
{fewest_open:,} open; {tokens_per_s:,.0f} tokens a second; longest gap in a stream
{longest_gap_s:.2f} s at a token each {step_seconds:g} s. Early and late: medians of the first
minute after the warm-up and of the last one (of a short run: quarter).
"""


def markdown(document: Document) -> str:
    figures = document["figures"]
    words = " ".join(WORDS.format_map(figures).split())
    memory = growth_table(figures["memory"], "early", "late")
    return sections([machine_line(document), words, memory, listed(figures["losses"])])


COMMAND = Measurement(
    "soak",
    __doc__,
    measure,
    markdown,
    {
        "--streams": (1000, "open at a time"),
        "--seconds": (600.0, "of replacing what ends"),
        "--step-seconds": (0.5, "between two tokens"),
        "--longest": (STREAM_SECONDS[1], "stream, seconds"),
    },
    draw=lambda path, document: draw(document["samples"], document["figures"]["warm_up"], path),
    faults=lambda document: not passed(document["figures"]),
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
