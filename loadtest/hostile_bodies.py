"""What hostile request bodies cost others: `python loadtest/hostile_bodies.py --help`.

Some streams run against a real system with the default model; the time between their chunks is
noted, first undisturbed, then while one client sends bodies that are meant to hurt, one after the
other.  Told are the streams' inter-token latencies with and without, and for each kind of body the
status and how long the server took after its last byte.  Answers must be equal in both runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from loadtest.report.facts import machine_line
from loadtest.report.figures import distribution
from loadtest.report.files import Facts, Report, parser
from loadtest.streaming import connected, events
from penstock.bench.load.report import markdown_table
from testing.serving import Server

PROGRAM = "loadtest/hostile_bodies.py"
PIECE = 1 << 20
MESSAGE = b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,'
DEEP = 100_000

BODIES: dict[str, Callable[[], bytes]] = {
    "100 MB of one string": lambda: b'{"prompt":"' + b"x" * 100_000_000 + b'"}',
    "15 MB of string for a number": lambda: MESSAGE + b'"n":"' + b"x" * 15_000_000 + b'"}',
    "15 MB of prompt": lambda: b'{"prompt":"' + b"ab " * 5_000_000 + b'"}',
    "5 million token ids": lambda: b'{"prompt":[' + b"1," * 5_000_000 + b"1]}",
    "1 million messages": lambda: (
        b'{"messages":[' + b'{"role":"a"},' * 1_000_000 + b'{"role":"a"}]}'
    ),
    "arrays, 100,000 deep": lambda: MESSAGE + b'"tools":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "objects, 100,000 deep": lambda: (
        MESSAGE + b'"metadata":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}"
    ),
    "lone surrogate": lambda: b'{"prompt":"\\ud800"}',
    "NaN": lambda: b'{"prompt":"x","temperature":NaN}',
    "Infinity": lambda: b'{"prompt":"x","temperature":Infinity}',
    "an integer of 1 million digits": lambda: b'{"prompt":"x","seed":' + b"9" * 1_000_000 + b"}",
    "a float of 1 million digits": lambda: (
        b'{"prompt":"x","temperature":0.' + b"1" * 1_000_000 + b"e99999}"
    ),
    "1 million duplicate keys": lambda: b"{" + b'"prompt":"x",' * 1_000_000 + b'"prompt":7}',
    "1 million unknown keys": lambda: (
        b'{"prompt":"x"' + b"".join(b',"k%d":1' % i for i in range(1_000_000)) + b"}"
    ),
    "an unknown key of 10 MB": lambda: b'{"prompt":"x","' + b"y" * 10_000_000 + b'":1}',
    "not UTF-8": lambda: b'{"prompt":"' + b"\xff" * 1_000_000 + b'"}',
    "a number alone": lambda: b"7",
}
"""Each is answered by a 4xx."""


def path_of(body: bytes) -> str:
    """The endpoint that a body is meant for."""
    chat = body.startswith((b'{"messages"', b"{}"))
    return "/v1/chat/completions" if chat else "/v1/completions"


async def attack(port: int, body: bytes, path: str) -> tuple[int, float]:
    """Status, and seconds from the last byte sent (or the answer's being there before) to the
    answer's first byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    answer = asyncio.create_task(reader.readline())
    try:
        writer.write(head.encode())
        for start in range(0, len(body), PIECE):
            writer.write(body[start : start + PIECE])
            await writer.drain()
    except ConnectionError:
        pass  # It was answered and closed before the end.
    begun = time.perf_counter()
    line = await answer
    seconds = time.perf_counter() - begun
    writer.close()
    return int(line.split()[1]), seconds


async def stream(port: int, model: str, number: int, tokens: int) -> tuple[list[float], str]:
    """Seconds between the chunks of a streamed completion, and a digest of its text."""
    body = {
        "model": model,
        "prompt": f"Story number {number}: once upon a time",
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 1,
        "seed": number,
    }
    gaps, text, last = [], hashlib.sha256(), 0.0
    async with connected(f"http://127.0.0.1:{port}", 1) as client:
        async for event in events(client, body):
            at = time.perf_counter()
            gaps += [at - last] if last else []
            last = at
            text.update(event["choices"][0]["text"].encode())
    return gaps, text.hexdigest()


async def streams(port: int, model: str, count: int, tokens: int) -> tuple[list[float], list[str]]:
    """All gaps, and each stream's digest."""
    done = await asyncio.gather(*(stream(port, model, n, tokens) for n in range(count)))
    return [gap for gaps, _ in done for gap in gaps], [digest for _, digest in done]


async def attack_for_ever(port: int, told: dict[str, list[tuple[int, float]]]) -> None:
    bodies = {name: make() for name, make in BODIES.items()}
    while True:
        for name, body in bodies.items():
            told.setdefault(name, []).append(await attack(port, body, path_of(body)))


async def compare(port: int, model: str, count: int, tokens: int) -> dict[str, Any]:
    """The figures of both runs. Raises RuntimeError for an answer that differs or isn't 4xx."""
    await streams(port, model, 2, 8)
    quiet, undisturbed = await streams(port, model, count, tokens)
    told: dict[str, list[tuple[int, float]]] = {}
    attacker = asyncio.create_task(attack_for_ever(port, told))
    loud, disturbed = await streams(port, model, count, tokens)
    attacker.cancel()
    await asyncio.gather(attacker, return_exceptions=True)
    if undisturbed != disturbed:
        raise RuntimeError("a stream's text was another under attack")
    for name, answers in told.items():
        if any(not 400 <= status < 500 for status, _ in answers):
            raise RuntimeError(f"{name}: {answers}")
    return {
        "streams": count,
        "tokens": tokens,
        "without": distribution(quiet, 1000),
        "with": distribution(loud, 1000),
        "bodies": {name: answered(answers) for name, answers in told.items()},
    }


def answered(answers: list[tuple[int, float]]) -> dict[str, float]:
    """Of one kind of body: its status, how often it was sent, and milliseconds."""
    times = distribution((seconds for _, seconds in answers), 1000)
    figures = {"status": answers[0][0], "sent": len(answers)}
    return {**figures, "median_ms": times["p50"], "max_ms": times["max"]}


def tables(facts: Facts, figures: dict[str, Any]) -> str:
    names = ("p50", "p90", "p99", "max")
    gaps = [
        [f"{label} attack", *(f"{figures[label][name]:.1f}" for name in names)]
        for label in ("without", "with")
    ]
    bodies = [
        [name, str(b["status"]), str(b["sent"]), f"{b['median_ms']:.1f}", f"{b['max_ms']:.1f}"]
        for name, b in figures["bodies"].items()
    ]
    return (
        f"{machine_line(facts)}\n\nBetween two chunks of one of {figures['streams']} streams, "
        f"ms:\n\n{markdown_table(['', *names], gaps)}\n"
        "From a body's last byte to the answer's first (the client's own turn included), ms:\n\n"
        + markdown_table(["body", "status", "times", "median", "max"], bodies)
    )


def main() -> None:
    command = parser(PROGRAM, __doc__, section=True)
    command.add_argument("--streams", type=int, default=8)
    command.add_argument("--tokens", type=int, default=400)
    flags = command.parse_args()
    report = Report("hostile_bodies", PROGRAM, flags)
    with Server() as server:
        port = int(server.url.rpartition(":")[2])
        figures = asyncio.run(compare(port, server.model, flags.streams, flags.tokens))
    report.finish(figures, lambda facts: tables(facts, figures), section="hostile-bodies")


if __name__ == "__main__":
    main()
