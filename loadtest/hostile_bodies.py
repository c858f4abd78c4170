"""What hostile request bodies cost others: `python -m loadtest.hostile_bodies --help`.

Some streams run against a real system with the default model; the time between their chunks is
noted, first undisturbed, then while one client sends bodies that are meant to hurt, one after the
other.  Told are the streams' inter-token latencies with and without, and for each kind of body the
status and how long the server took after its last byte.  Answers must be equal in both runs.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Callable

from loadtest.report import Document, Flags, Measurement, distribution, machine_line, table
from loadtest.streaming import beside, listen
from testing.serving import Server
from testing.streams.reading import connected

STREAMS = 8
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


async def attack(url: str, body: bytes) -> tuple[int, float]:
    """Status, and seconds from the last byte sent (or the answer's being there before) to the
    answer's first byte."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    path = "/v1/chat/completions" if body.startswith(b'{"messages"') else "/v1/completions"
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


async def stream(url: str, number: int, tokens: int) -> tuple[list[float], str]:
    """Seconds between the chunks of a streamed completion, and its text."""
    prompt = f"Story number {number}: once upon a time"
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 1, "seed": number}
    async with connected(url, 1) as client:
        heard = await listen(client, body)
    return heard.gaps, "".join(event["choices"][0]["text"] for event in heard.events)


async def streams(url: str, count: int, tokens: int) -> tuple[list[float], list[str]]:
    """All gaps, and each stream's text."""
    done = await asyncio.gather(*(stream(url, n, tokens) for n in range(count)))
    return [gap for gaps, _ in done for gap in gaps], [text for _, text in done]


async def attack_on(url: str, told: dict[str, list[tuple[int, float]]]) -> None:
    """All bodies, again and again. told: by name, what `attack` gave."""
    bodies = {name: make() for name, make in BODIES.items()}
    for name, body in itertools.cycle(bodies.items()):
        told[name].append(await attack(url, body))


def measure(flags: Flags) -> Document:
    with Server() as server:
        return asyncio.run(compare(server.url, flags.tokens))


async def compare(url: str, tokens: int) -> Document:
    """The figures of both runs. Raises RuntimeError for an answer that differs or isn't 4xx."""
    await streams(url, 2, 8)
    quiet, undisturbed = await streams(url, STREAMS, tokens)
    told: dict[str, list[tuple[int, float]]] = defaultdict(list)
    async with beside([attack_on(url, told)]):
        loud, disturbed = await streams(url, STREAMS, tokens)
    if undisturbed != disturbed:
        raise RuntimeError("a stream's text was another under attack")
    for name, answers in told.items():
        if any(not 400 <= status < 500 for status, _ in answers):
            raise RuntimeError(f"{name}: {answers}")
    return {
        "streams": STREAMS,
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


GAPS = {"": "{name} attack", **{name: f"{{{name}:.1f}}" for name in ("p50", "p90", "p99", "max")}}
ANSWERS = {
    "body": "{name}",
    "status": "{status}",
    "times": "{sent}",
    "median": "{median_ms:.1f}",
    "max": "{max_ms:.1f}",
}


def markdown(document: Document) -> str:
    gaps = table(GAPS, [{"name": name, **document[name]} for name in ("without", "with")])
    bodies = table(ANSWERS, [{"name": name, **b} for name, b in document["bodies"].items()])
    return (
        f"{machine_line(document)}\n\nBetween two chunks of one of {document['streams']} streams, "
        f"ms:\n\n{gaps}\n"
        "From a body's last byte to the answer's first (the client's own turn included), ms:\n\n"
        f"{bodies}"
    )


FLAGS = {"--tokens": (400, "of each stream")}
COMMAND = Measurement("hostile_bodies", __doc__, measure, markdown, FLAGS, section="hostile-bodies")

if __name__ == "__main__":
    sys.exit(COMMAND.main())
