"""One run: a null engine, a real gateway process and the reader, for a number of streams."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from testing.board import Board

PATIENCE = 300.0


def measure(
    streams: int,
    *,
    seconds: float,
    rate: float,
    window: int | None = None,
    group: int = 256,
    path: str = "/v1/chat/completions",
    profile: Path | None = None,
) -> dict[str, Any]:
    """Figures of a run. rate: tokens a second of all streams; with a window (tokens of each stream
    that may be on their way), only a guess of what there will be.
    profile: a file for the gateway's cProfile data."""
    tokens = max(8, round(seconds * rate / streams))
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        endpoint, page = f"ipc://{folder}/front", Path(folder) / "board"
        board = Board(page)
        shape = ["--streams", str(streams), "--tokens", str(tokens), "--group", str(group)]
        pace = ["--rate", str(rate)] if window is None else ["--window", str(window)]
        with (
            _running("-m", "testing.null_engine", endpoint, str(page), *shape, *pace),
            _gateway(endpoint, profile) as (gateway, port, ready_seconds),
        ):
            figures: dict[str, Any] = {"streams": streams, "ready_seconds": ready_seconds}
            figures["ready_cpu_seconds"] = _cpu(gateway)
            figures["rss_ready_mib"] = _rss(gateway)
            arguments = [str(port), str(page), *shape, "--path", path]
            with _running(
                "-m", "loadtest.gateway_alone.reader", *arguments, stdout=subprocess.PIPE
            ) as reader:
                _wait(lambda: board.submitted == streams, reader)
                time.sleep(0.5)
                figures["rss_open_mib"] = _rss(gateway)
                board.go = True
                figures |= _steady(gateway, board, streams * tokens, reader)
                said, _ = reader.communicate(timeout=PATIENCE)
                if reader.returncode:
                    raise RuntimeError("the reader failed")
            figures["rss_after_mib"] = _rss(gateway)
            figures |= json.loads(said)
    figures["tokens_per_event"] = figures["tokens"] / figures["events"]
    return figures


def _steady(
    gateway: psutil.Process, board: Board, tokens: int, reader: subprocess.Popen[bytes]
) -> dict[str, Any]:
    """Tokens a second and the gateway's CPU for them, without the streams' beginnings and ends."""
    moments = []
    for part in (0.15, 0.85):
        _wait(lambda part=part: board.received >= part * tokens, reader, 0.001)
        moments.append((board.received, _cpu(gateway), time.perf_counter()))
    count, cpu, wall = (b - a for a, b in zip(*moments, strict=True))
    return {
        "tokens_per_s": count / wall,
        "cpu_share": cpu / wall,
        "cpu_seconds_per_1000_tokens": 1000 * cpu / count,
    }


@contextlib.contextmanager
def _gateway(endpoint: str, profile: Path | None) -> Iterator[tuple[psutil.Process, int, float]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begun = time.perf_counter()
    profiled = ["-m", "cProfile", "-o", str(profile)] if profile else []
    command = [*profiled, "-m", "penstock", "gateway"]
    with _running(*command, "--engine-endpoint", endpoint, "--port", str(port)) as process:
        while not _ready(port):
            if process.poll() is not None or time.perf_counter() - begun > PATIENCE:
                raise RuntimeError("the gateway did not become ready")
            time.sleep(0.005)
        yield psutil.Process(process.pid), port, time.perf_counter() - begun


@contextlib.contextmanager
def _running(*command: str, stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        env={**os.environ, "PENSTOCK_LOG_LEVEL": "error"},
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(condition: Any, process: subprocess.Popen[bytes], pause: float = 0.01) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the reader ended, or nothing happened for too long")
        time.sleep(pause)


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.HTTPError, OSError):
        return False


def _rss(process: psutil.Process) -> float:
    return float(process.memory_info().rss / 2**20)


def _cpu(process: psutil.Process) -> float:
    """Seconds of all threads so far, to the nanosecond."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
