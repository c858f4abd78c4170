"""One run: a null engine, a real gateway process and the reader, for a number of streams."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from deploy.local import wait
from testing.board import Board
from testing.processes import RestartableProcess, gateway

PATIENCE = 300.0
GROUP = 256
"""Streams in one step, at most."""
NO_LOG = Path(os.devnull)


def measure(
    streams: int,
    seconds: float,
    *,
    rate: float,
    window: int | None = None,
    profile: Path | None = None,
) -> dict[str, Any]:
    """Figures of a run. rate: tokens a second of all streams; with a window (tokens of each stream
    that may be on their way), only a guess of what there will be.
    profile: a file for the gateway's cProfile data."""
    tokens = max(8, round(seconds * rate / streams))
    shape = ["--streams", str(streams), "--tokens", str(tokens), "--group", str(GROUP)]
    pace = ["--rate", str(rate)] if window is None else ["--window", str(window)]
    profiled = ["-m", "cProfile", "-o", str(profile)] if profile else []
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        endpoint, page = f"ipc://{folder}/front", Path(folder) / "board"
        board = Board(page)
        null = [sys.executable, "-m", "testing.null_engine", endpoint, str(page), *shape, *pace]
        quiet = {"PENSTOCK_LOG_LEVEL": "error"}
        with (
            RestartableProcess(null),
            gateway(endpoint, python=profiled, environment=quiet) as started,
        ):
            process = psutil.Process(started.pid)
            figures: dict[str, Any] = {
                "streams": streams,
                "ready_seconds": started.ready_s,
                "ready_cpu_seconds": _cpu(process),
                "rss_ready_mib": _rss(process),
            }
            with _reader(str(started.port), str(page), *shape) as reader:
                wait(lambda: board.submitted == streams, reader, NO_LOG, PATIENCE)
                time.sleep(0.5)
                figures["rss_open_mib"] = _rss(process)
                board.go = True
                figures |= _steady(process, board, streams * tokens, reader)
                said, _ = reader.communicate(timeout=PATIENCE)
                if reader.returncode:
                    raise RuntimeError("the reader failed")
            figures["rss_after_mib"] = _rss(process)
            figures |= json.loads(said)
    figures["tokens_per_event"] = figures["tokens"] / figures["events"]
    return figures


def _steady(
    gateway: psutil.Process, board: Board, tokens: int, reader: subprocess.Popen[bytes]
) -> dict[str, Any]:
    """Tokens a second and the gateway's CPU for them, without the streams' beginnings and ends."""
    moments = []
    for part in (0.15, 0.85):
        wait(
            lambda part=part: board.received >= part * tokens,
            reader,
            NO_LOG,
            PATIENCE,
            pause=0.001,
        )
        moments.append((board.received, _cpu(gateway), time.perf_counter()))
    count, cpu, wall = (b - a for a, b in zip(*moments, strict=True))
    return {
        "tokens_per_s": count / wall,
        "cpu_share": cpu / wall,
        "cpu_seconds_per_1000_tokens": 1000 * cpu / count,
    }


@contextlib.contextmanager
def _reader(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "loadtest.gateway_alone.reader", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def _rss(process: psutil.Process) -> float:
    return float(process.memory_info().rss / 2**20)


def _cpu(process: psutil.Process) -> float:
    """Seconds of all threads so far, to the nanosecond."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
