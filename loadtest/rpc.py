"""Tokens a second over gRPC and over HTTP, through one process each.

    python -m loadtest.rpc                # some two minutes
    python -m loadtest.rpc --streams 64 --rounds 5 --output FOLDER

A null engine core, which computes nothing, sends tokens without waiting for each to be read, as a
real one does; up to --window of each stream are on their way. With a window of 1 each token is a
message of its own, and a stream waits for its reader after each.
Between it and a reader stands a gateway, or gRPC's process; they take turns. CPU is that process's,
all threads: on a machine with few cores the reader's own, which is larger over gRPC, takes away
from what a second holds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from deploy.local import free_port, wait
from loadtest.report import Document, Flags, Measurement, machine_line, say, table
from loadtest.steady import NO_LOG, reading, steady
from testing.board import Board
from testing.processes import RestartableProcess

KINDS = ("http", "grpc")
TOKENS = {1: 4_000, 64: 1_200}
"""Of each stream."""
LEAST_SHARE = 0.9
"""Of HTTP's tokens a second."""
PATIENCE = 120.0


def measure(flags: Flags) -> Document:
    rows = []
    for streams in flags.streams:
        runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        for _ in range(flags.rounds):
            for kind in KINDS:
                runs[kind].append(measured(kind, streams, TOKENS.get(streams, 400), flags.window))
                say(json.dumps(runs[kind][-1]))
        rows.append({"streams": streams, "runs": runs})
    return {"rows": rows, "window": flags.window}


def measured(kind: str, streams: int, tokens: int, window: int) -> dict[str, Any]:
    """Figures of one run, between 15 % and 85 % of its tokens."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        endpoint, page, ready = f"ipc://{folder}/front", Path(folder) / "board", Path(folder) / "r"
        board = Board(page)
        shape = ["--streams", str(streams), "--tokens", str(tokens), "--window", str(window)]
        null = [sys.executable, "-m", "testing.null_engine", endpoint, str(page), *shape]
        front = ["gateway", "--port", str(port)]
        if kind == "grpc":
            front = ["grpc", "--grpc-port", str(port), "--ready-file", str(ready)]
        command = [sys.executable, "-m", "penstock", *front, "--engine-endpoint", endpoint]
        with RestartableProcess(null), RestartableProcess(command) as process:
            if kind == "grpc":
                wait(ready.exists, process.process, NO_LOG, PATIENCE)
            else:
                process.wait_answers(f"http://127.0.0.1:{port}/health/ready")
            return {"kind": kind} | _read(kind, port, page, board, streams, tokens, process.pid)


def _read(
    kind: str, port: int, page: Path, board: Board, streams: int, tokens: int, pid: int
) -> dict[str, Any]:
    with reading("loadtest.rpc_reader", kind, port, page, streams, tokens) as reader:
        wait(lambda: board.submitted == streams, reader, NO_LOG, PATIENCE)
        found = steady(pid, board, streams * tokens, reader, PATIENCE)
        said, _ = reader.communicate(timeout=PATIENCE)
    return {
        "tokens_per_s": found.tokens / found.seconds,
        "us_per_token": 1e6 * found.cpu / found.tokens,
        "rss_mib": psutil.Process(pid).memory_info().rss / 2**20,
        **json.loads(said),
    }


def shares(document: Document) -> list[dict[str, Any]]:
    """A row for each number of streams: medians of the rounds."""
    found = []
    for row in document["rows"]:
        middle = {
            kind: {
                name: median(run[name] for run in row["runs"][kind])
                for name in ("tokens_per_s", "us_per_token", "rss_mib")
            }
            for kind in KINDS
        }
        share = middle["grpc"]["tokens_per_s"] / middle["http"]["tokens_per_s"]
        flat = {f"{kind}_{name}": value for kind in KINDS for name, value in middle[kind].items()}
        found.append({"streams": row["streams"], "share": share, **flat})
    return found


def faults(document: Document) -> bool:
    """Whether gRPC is slower than it may be."""
    return any(row["share"] < LEAST_SHARE for row in shares(document))


COLUMNS = {
    "streams": "{streams}",
    "tokens/s over HTTP": "{http_tokens_per_s:,.0f}",
    "over gRPC": "{grpc_tokens_per_s:,.0f}",
    "gRPC : HTTP": "{share:.2f}",
    "µs CPU a token, HTTP": "{http_us_per_token:.0f}",
    "gRPC": "{grpc_us_per_token:.0f}",
    "RSS, MiB, HTTP": "{http_rss_mib:.0f}",
    "RSS, gRPC": "{grpc_rss_mib:.0f}",
}


def markdown(document: Document) -> str:
    return "\n".join(
        [
            "# gRPC beside HTTP",
            "",
            f"Streams over a null engine core, up to {document['window']} tokens of each on their"
            " way; `/v1/completions` and `vllm.Inference/GenerateStream`; medians of the rounds.",
            "",
            machine_line(document),
            "",
            table(COLUMNS, shares(document)),
            "",
        ]
    )


FLAGS = {
    "--streams": {"type": int, "nargs": "+", "default": list(TOKENS)},
    "--rounds": (3, ""),
    "--window": (32, "tokens of a stream on their way"),
}
COMMAND = Measurement("rpc", __doc__, measure, markdown, FLAGS, faults=faults)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
