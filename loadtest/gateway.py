"""The gateway alone, over a null engine core: `python -m loadtest.gateway --help`.

A real gateway process, as `penstock gateway` starts it, between a null engine core, which
computes nothing, and gateway_reader.py, each a process of its own.  For each number of streams two
runs: as fast as it goes, a stream's next token leaving when its last one was read, so that each
token is an event of its own; and at a fixed rate, for the time from the engine's send to the
client's receipt.  At LIMITS numbers of streams, testing/bare_gateway.py takes the gateway's
place in a third run: the machine's limit.  A step holds 256 streams at most, as the engine core's
has it.  CPU is the gateway's, all threads, between 15 % and 85 % of a run's tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from deploy.local import free_port, wait
from loadtest.report import Document, Flags, Measurement, machine_line, say, table
from testing.board import Board
from testing.processes import Gateway, RestartableProcess, gateway

RATES = {1: 100.0, 100: 5_000.0, 1_000: 10_000.0, 5_000: 10_000.0}
"""Tokens a second of all streams together, below what a gateway can."""
EXPECTED = {1: 1_500.0, 100: 20_000.0}
"""Tokens a second flat out, roughly: how many a run needs."""
LIMITS = (100, 1_000)
PATIENCE = 300.0
NO_LOG = Path(os.devnull)
SHARE = (0.15, 0.85)
"""The shares of a run's tokens between which the gateway is looked at: without beginnings and
ends."""
Reader = subprocess.Popen[bytes]
GROUP = 256
"""Streams in one step, at most."""


def measure(flags: Flags) -> Document:
    """Two runs for each number of streams."""
    rows = []
    for streams in flags.streams:
        paced = RATES.get(streams, 10_000.0)
        row = {
            "streams": streams,
            "flat_out": measured(
                streams, flags.seconds, rate=EXPECTED.get(streams, 25_000.0), window=1
            ),
            "paced": measured(streams, flags.seconds, rate=paced),
            "rate": paced,
        }
        if streams in LIMITS:
            row["limit"] = measured(streams, flags.seconds, rate=paced, bare=True)
        rows.append(row)
        say(json.dumps(row))
    return {"group": GROUP, "rows": rows}


def measured(
    streams: int,
    seconds: float,
    *,
    rate: float,
    window: int | None = None,
    bare: bool = False,
) -> dict[str, Any]:
    """Figures of a run. rate: tokens a second of all streams; with a window (tokens of each stream
    that may be on their way), only a guess of what there will be.
    bare: of a bare gateway instead."""
    tokens = max(8, round(seconds * rate / streams))
    sizes = ["--streams", str(streams), "--tokens", str(tokens), "--group", str(GROUP)]
    pace = ["--rate", str(rate)] if window is None else ["--window", str(window)]
    serving = _bare_gateway if bare else _gateway
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        endpoint, page = f"ipc://{folder}/front", Path(folder) / "board"
        board = Board(page)
        null = [sys.executable, "-m", "testing.null_engine", endpoint, str(page), *sizes, *pace]
        with RestartableProcess(null), serving(endpoint) as started:
            process = psutil.Process(started.pid)
            figures: dict[str, Any] = {
                "streams": streams,
                "ready_seconds": started.ready_s,
                "ready_cpu_seconds": cpu_seconds(started.pid),
                "rss_ready_mib": _rss(process),
            }
            shape = (started.port, page, streams, tokens, GROUP)
            with reading(*shape) as reader:
                wait(lambda: board.submitted == streams, reader, NO_LOG, PATIENCE)
                time.sleep(0.5)  # What accepting the streams took for a moment is given back.
                figures["rss_open_mib"] = _rss(process)
                found = steady(started.pid, board, streams * tokens, reader)
                figures |= {
                    "tokens_per_s": found.tokens / found.seconds,
                    "cpu_share": found.cpu / found.seconds,
                    "cpu_seconds_per_1000_tokens": 1000 * found.cpu / found.tokens,
                }
                said, _ = reader.communicate(timeout=PATIENCE)
                if reader.returncode:
                    raise RuntimeError("the reader failed")
            figures["rss_after_mib"] = _rss(process)
            figures |= json.loads(said)
    figures["tokens_per_event"] = figures["tokens"] / figures["events"]
    return figures


class Steady(NamedTuple):
    """What a process took between the two shares of a run."""

    tokens: int
    cpu: float  # seconds of the process, all threads
    seconds: float


@contextmanager
def reading(*arguments: object) -> Iterator[Reader]:
    """A reader in a process of its own, whose output is a pipe."""
    command = [sys.executable, "-m", "loadtest.gateway_reader", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def steady(pid: int, board: Board, tokens: int, reader: Reader) -> Steady:
    """Lets the streams begin once all are open."""
    board.go = True
    moments = []
    for part in SHARE:
        wait(lambda n=part * tokens: board.received >= n, reader, NO_LOG, PATIENCE, pause=0.001)
        moments.append((board.received, cpu_seconds(pid), time.perf_counter()))
    return Steady(*(after - before for before, after in zip(*moments, strict=True)))


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads so far, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _gateway(endpoint: str) -> AbstractContextManager[Gateway]:
    return gateway(endpoint, environment={"PENSTOCK_LOG_LEVEL": "error"})


@contextmanager
def _bare_gateway(endpoint: str) -> Iterator[Gateway]:
    port = free_port()
    url, begun = f"http://127.0.0.1:{port}", time.perf_counter()
    command = [sys.executable, "-m", "testing.bare_gateway", endpoint, str(port)]
    with RestartableProcess(command) as process:
        process.wait_answers(url)
        yield Gateway(process.pid, url, port, time.perf_counter() - begun)


def _rss(process: psutil.Process) -> float:
    return float(process.memory_info().rss / 2**20)


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


LIMIT = {
    "streams": "{streams:,}",
    "tokens/s": "{rate:,.0f}",
    "p50, ms": "{p50_ms:.2f}",
    "p99, ms": "{p99_ms:.2f}",
    "µs CPU/token": "{us_per_token:.1f}",
    "p50 : the gateway's": "{share_p50:.2f}",
    "CPU : the gateway's": "{share_cpu:.2f}",
}


def tables(document: Document) -> str:
    """A table of each kind of run."""
    rows = document["rows"]
    ready = [row[kind] for row in rows for kind in ("flat_out", "paced")]
    seconds = min(each["ready_seconds"] for each in ready)
    cpu = min(each["ready_cpu_seconds"] for each in ready)
    flat_out = [shown(row["flat_out"]) for row in rows]
    paced = [shown(row["paced"]) | {"rate": row["rate"]} for row in rows]
    limits = [limit(row) for row in rows if "limit" in row]
    return (
        f"{machine_line(document)}\n\nFlat out, each token an event of its own:\n\n"
        f"{table(FLAT_OUT, flat_out)}\nAt a fixed rate:\n\n{table(PACED, paced)}\n"
        "What the machine allows: the same of a process that only receives the engine core's "
        f"messages and writes finished events.\n\n{table(LIMIT, limits)}\n"
        f"Start to ready, the quickest of {len(ready)}: {seconds:.2f} s, {cpu:.2f} s of it CPU.\n"
    )


def limit(row: dict[str, Any]) -> dict[str, Any]:
    """What the bare gateway takes, and its share of what the gateway takes."""
    bare, whole = row["limit"], row["paced"]
    cpu = "cpu_seconds_per_1000_tokens"
    shares = {"share_p50": bare["p50_ms"] / whole["p50_ms"], "share_cpu": bare[cpu] / whole[cpu]}
    return shown(bare) | shares | {"rate": row["rate"]}


def shown(run: dict[str, Any]) -> dict[str, Any]:
    """The run's figures, and those that follow from them."""
    cost = run["cpu_seconds_per_1000_tokens"]
    return run | {
        "us_per_token": 1000 * cost,
        "k_per_cpu_s": 1 / cost,
        "cpu_percent": 100 * run["cpu_share"],
        "client_percent": 100 * run["client_cpu_seconds"] / run["seconds"],
    }


COMMAND = Measurement(
    "gateway",
    __doc__,
    measure,
    tables,
    {
        "--streams": {"type": int, "nargs": "+", "default": list(RATES)},
        "--seconds": (8.0, "of a run, about"),
    },
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
