"""How long an ordinary chat waits for the first byte of its answer, where the engine core answers
at once: a part of `loadtest.gateway`.

One chat after the other over one connection, streamed; the time is from the request's first byte to
the answer's first event.  Processor time is that of the gateway and of the processes that it has
made, and so is their memory: what several share counts once (PSS).
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from loadtest.report import distribution, say
from testing.board import Board
from testing.null_engine import WORD
from testing.processes import Gateway, RestartableProcess, processor_seconds

COUNT, WARMING = 2_000, 200
WORDS = "the river runs past seven old mills and a very long stone bridge before it turns "
CHATS = {"60 characters": (1, 60), "8 turns of 500": (8, 500), "20 turns of 1,500": (20, 1_500)}
"""Messages, and characters of each."""
FIRST, END = b"data: ", b"\r\n0\r\n\r\n"


def measure(
    serving: Callable[[str], Any], null: Callable[[str, Path], list[str]]
) -> list[dict[str, Any]]:
    """A row for each kind of chat. serving: a gateway of an engine core at an endpoint.  null: the
    command of an engine core there."""
    rows = []
    for name, shape in CHATS.items():
        with tempfile.TemporaryDirectory(prefix="pst-") as folder:
            endpoint, page = f"ipc://{folder}/front", Path(folder) / "board"
            board = Board(page)
            with RestartableProcess(null(endpoint, page)), serving(endpoint) as started:
                row = {"chat": name, **_asked(started, *shape)}
                board.ended = True
        say(json.dumps(row))
        rows.append(row)
    return rows


def _asked(gateway: Gateway, messages: int, characters: int) -> dict[str, Any]:
    bodies = [_body(number, messages, characters) for number in range(WARMING + COUNT)]
    seconds = []
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for body in bodies[:WARMING]:
            _first_byte(connection, body)
        before = processor_seconds(gateway.pid)
        for body in bodies[WARMING:]:
            seconds.append(_first_byte(connection, body))
        spent = processor_seconds(gateway.pid) - before
    found = distribution(seconds, 1000)
    family = _family(gateway.pid)
    return {
        "bytes": len(bodies[0]),
        **{f"{each}_ms": found[each] for each in ("p50", "p90", "p99", "max")},
        "cpu_ms": 1000 * spent / COUNT,
        "processes": len(family),
        "rss_mib": psutil.Process(gateway.pid).memory_info().rss / 2**20,
        "pss_mib": sum(each.memory_full_info().pss for each in family) / 2**20,
    }


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _body(number: int, messages: int, characters: int) -> bytes:
    """A whole request, unlike every other number's."""
    text = (f"{number} " + WORDS * (characters // len(WORDS) + 1))[:characters]
    turns = [
        {"role": "assistant" if turn % 2 else "user", "content": f"{turn} {text}"}
        for turn in range(messages)
    ]
    asked = {"messages": turns, "max_tokens": 1, "temperature": 0, "seed": number, "stream": True}
    body = json.dumps(asked).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    )
    return f"{head}content-type: application/json\r\n\r\n".encode() + body


def _first_byte(connection: socket.socket, request: bytes) -> float:
    """Seconds until the first event. Reads the answer to its end."""
    begun = time.perf_counter()
    connection.sendall(request)
    data = b""
    while FIRST not in data:
        data += _received(connection)
    seconds = time.perf_counter() - begun
    while not data.endswith(END):
        data += _received(connection)
    if WORD.encode() not in data:
        raise RuntimeError(f"not what the engine core says: {data[:300]!r}")
    return seconds


def _received(connection: socket.socket) -> bytes:
    part = connection.recv(65_536)
    if not part:
        raise RuntimeError("the gateway has closed the connection")
    return part
