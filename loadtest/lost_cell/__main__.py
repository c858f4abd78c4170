"""Kills one of two cells in the middle of many streams, and compares every answer with its
undisturbed twin.

    python -m loadtest.lost_cell                             # 500 streams of SmolLM2 135M
    python -m loadtest.lost_cell --streams 40 --tokens 16 --output FOLDER

The cells are real: each is `penstock serve` with a worker of one thread. Clients are the library's
(`penstock.resumed_events`). The twins come through the first balancer, from both cells at rest.
Exit code 1 where a stream was refused or differed; 2 where a program is missing.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from deploy.local import found
from loadtest.lost_cell.clients import Crowd, Heard
from loadtest.lost_cell.pair import FRONTS, RealCell, in_front
from loadtest.report import Document, Flags, Measurement, listed, machine_line, say, sections, table
from penstock_kernels.cpu.library import instruction_set

PROMPT_TOKENS = 32
BLOCK = 16
KEPT = 5
"""Most failures that the page lists."""


def measure(flags: Flags) -> Iterator[Document]:
    """A run for each balancer, after the one that nothing disturbs."""
    blocks = flags.streams * (PROMPT_TOKENS + flags.tokens) // BLOCK + flags.streams
    command = [flags.model, "--threads", "1", "--max-num-seqs", str(flags.streams)]
    command += ["--num-kv-blocks", str(blocks)]
    document: Document = {
        "model": flags.model,
        "streams": flags.streams,
        "tokens": flags.tokens,
        "cells": " ".join(["penstock serve", *command]),
        "instruction_set": instruction_set(),
        "versions": {name: version(name) for name in FRONTS},
        "runs": [],
    }
    with RealCell(command) as lost, RealCell(command) as other:
        first, *_ = FRONTS
        with in_front(first, [lost, other]) as balancer:
            begun = time.monotonic()
            twins = Crowd(balancer.url, flags.streams, flags.tokens).read()
            document["undisturbed"] = undisturbed(twins, time.monotonic() - begun)
        for name in FRONTS:
            with in_front(name, [lost, other]) as balancer:
                say(f"lost_cell: {flags.streams} streams through {name}")
                document["runs"].append(run(name, balancer.url, (lost, other), twins, flags))
            yield document
            lost.start()


def run(
    name: str, url: str, cells: tuple[RealCell, RealCell], twins: Sequence[Heard], flags: Flags
) -> Document:
    """Kills the first cell when half of all events have come."""
    lost, _ = cells
    crowd = Crowd(url, flags.streams, flags.tokens)
    before = [each.tokens() for each in cells]
    struck: dict[str, Any] = {}

    def strike() -> None:
        crowd.wait_for(sum(len(each.times) for each in twins) // 2)
        struck["computed"] = [each.tokens() - n for each, n in zip(cells, before, strict=True)]
        struck["at"] = time.monotonic()
        struck["processes"] = lost.kill()

    begun = time.monotonic()
    heard = crowd.read(strike)
    whole = [each for each in heard if not each.refused]
    moved = [each for each in heard if each.connections > 1]
    silences = [silence(each, struck["at"]) for each in moved if not each.refused]
    wrong = [
        f"stream {n}: {each.answer} instead of {twin.answer}"
        for n, (each, twin) in enumerate(zip(heard, twins, strict=True))
        if not each.refused and each.answer != twin.answer
    ]
    return {
        "balancer": name,
        "seconds": time.monotonic() - begun,
        "seconds_before": struck["at"] - begun,
        "killed_processes": struck["processes"],
        "computed_before": struck["computed"],
        "moved": len(moved),
        "resumed": len([each for each in moved if not each.refused]),
        "requests_again": sum(each.connections - 1 for each in heard),
        "equal": len(whole) - len(wrong),
        "refused": len(heard) - len(whole),
        "silence_p50_s": statistics.median(silences) if silences else 0.0,
        "silence_max_s": max(silences, default=0.0),
        "longest_gap_s": max((each.gap() for each in whole), default=0.0),
        "wrong": [*wrong[:KEPT], *[each.refused for each in heard if each.refused][:KEPT]],
    }


def silence(heard: Heard, struck: float) -> float:
    """Seconds between the last event before the blow and the next one; 0 where none was missing."""
    before = max(when for when in heard.times if when <= struck)
    return min((when for when in heard.times if when > struck), default=before) - before


def undisturbed(twins: Sequence[Heard], seconds: float) -> Document:
    """Raises RuntimeError where not even these came through."""
    refused = [each.refused for each in twins if each.refused]
    if refused:
        raise RuntimeError(f"{len(refused)} streams were refused at rest: {refused[0]}")
    gap = max(each.gap() for each in twins)
    return {"seconds": seconds, "longest_gap_s": gap, "texts": len({t.text for t in twins})}


def version(program: str) -> str:
    """What it says of itself. Raises NotThere."""
    flag = "-v" if program == "haproxy" else "--version"
    done = subprocess.run([found(program), flag], capture_output=True, text=True, timeout=30)
    return re.findall(r"\d+\.\d+\.\d+[-+.\w]*", done.stdout)[0]


COLUMNS = {
    "balancer": "{balancer}",
    "streams moved": "{moved}",
    "resumed": "{resumed}",
    "refused": "{refused}",
    "equal": "{equal} of {streams}",
    "silence of those that moved, s: median · longest": "{silence_p50_s:.1f} · {silence_max_s:.1f}",
    "longest gap of any, s": "{longest_gap_s:.1f}",
    "requests sent again": "{requests_again}",
    "before the blow, s": "{seconds_before:.0f}",
    "whole run, s": "{seconds:.0f}",
}


def markdown(document: Document) -> str:
    rest = document["undisturbed"]
    killed = {run["killed_processes"] for run in document["runs"]}
    return sections(
        [
            "# A cell is lost",
            machine_line(document),
            f"{document['streams']} resumable streams of {document['tokens']} tokens, greedy and "
            "sampled, in front of two cells, each of them "
            f"`{document['cells']}` ({document['instruction_set']}). When half of all events had "
            f"come, all {' or '.join(map(str, sorted(killed)))} processes of one cell were killed "
            "(SIGKILL); clients went on by the last event's id, and answers were compared with "
            f"those of the same requests at rest ({rest['texts']} different texts, "
            f"{rest['seconds']:.0f} s, longest gap {rest['longest_gap_s']:.1f} s).",
            table(COLUMNS, [{**each, "streams": document["streams"]} for each in document["runs"]]),
            "Silence: of a stream that moved, between its last event before the blow and the next "
            "one. It says little of cells that have machines of their own: here both cells, the "
            f"balancer and {document['streams']} clients had the same two cores, which had other "
            "work besides. After the blow, one thread computes all streams, and first the prompts "
            "of those that moved with what they had said.",
            " and ".join(f"{k} {v}" for k, v in document["versions"].items()) + ".",
            listed(line for each in document["runs"] for line in each["wrong"]),
        ]
    )


def faults(document: Document) -> list[str]:
    """What was refused or differed, and what tested nothing."""
    return [
        each["balancer"]
        for each in document["runs"]
        if each["equal"] != document["streams"] or not each["moved"]
    ]


COMMAND = Measurement(
    "lost_cell",
    __doc__,
    measure,
    markdown,
    {
        "--model": ("smollm2-135m", "that both cells serve"),
        "--streams": (500, "open at once"),
        "--tokens": (48, "of each stream"),
    },
    faults=faults,
)

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(COMMAND.main())
