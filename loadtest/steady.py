"""What a process takes for the tokens that it passes on, from a null engine core to a reader."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from deploy.local import wait
from testing.board import Board

NO_LOG = Path(os.devnull)
SHARE = (0.15, 0.85)
"""Of a run's tokens, between which it is looked at: without the streams' beginnings and ends."""
Reader = subprocess.Popen[bytes]


class Steady(NamedTuple):
    """Of the time between."""

    tokens: int
    cpu: float  # seconds of the process, all threads
    seconds: float


@contextlib.contextmanager
def reading(module: str, *arguments: object) -> Iterator[Reader]:
    """A reader in a process of its own, whose output is a pipe."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def steady(pid: int, board: Board, tokens: int, reader: Reader, patience: float) -> Steady:
    """Lets the streams begin once all are open. patience: seconds for each part of the tokens."""
    board.go = True
    moments = []
    for part in SHARE:
        wait(lambda n=part * tokens: board.received >= n, reader, NO_LOG, patience, pause=0.001)
        moments.append((board.received, cpu_seconds(pid), time.perf_counter()))
    return Steady(*(after - before for before, after in zip(*moments, strict=True)))


def cpu_seconds(pid: int) -> float:
    """Of all threads so far, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
