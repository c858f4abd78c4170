"""The soak run's reader sees what is missing; its memory figures are medians of the right time."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json

import pytest

from loadtest.report.memory import Memory
from loadtest.soak import Shape, passed
from testing.streams.reading import connected
from testing.streams.timed import Streams, Tally, beside
from testing.words import WORDS, text, word

SEED, TOKENS = 0, 8
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(words: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": words, "finish_reason": finish, "logprobs": None}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


WORD = [WORDS[word(SEED, place)] for place in range(TOKENS)]
PIECES = [*map(event, WORD[:-1]), event(WORD[-1], "length")]


def chunked(body: bytes, size: int) -> bytes:
    cuts = [body[at : at + size] for at in range(0, len(body), size)]
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(cut), cut) for cut in cuts) + b"0\r\n\r\n"


WHOLE = b"".join(PIECES) + DONE


async def heard(answer: bytes) -> Tally:
    """What the reader makes of a server that says just this to each."""

    answers = [answer]  # Of one stream: another one's would be taken for the wrong words.

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            if not answers:
                await reader.read()
            else:
                await reader.readuntil(b"}")
                writer.write(answers.pop())
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    shape = Shape(1, TOKENS, TOKENS)
    async with server, asyncio.timeout(60):
        port = server.sockets[0].getsockname()[1]
        async with connected(f"http://127.0.0.1:{port}", 1) as client:
            streams = Streams(client, shape.body, shape.text)
            async with beside([streams.repeat()]):
                while not (streams.tally.whole or streams.tally.problems):
                    await asyncio.sleep(0.001)
                first = copy.deepcopy(streams.tally)
    return first


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_whole_stream_however_it_is_cut(size: int) -> None:
    found = await heard(chunked(WHOLE, size))
    assert (found.whole, found.problems, found.tokens) == (1, [], TOKENS)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (chunked(b"".join([*PIECES[:3], *PIECES[4:]]) + DONE, 50), "characters"),
        (chunked(b"".join([*PIECES[:3], *PIECES[2:]]) + DONE, 50), "characters"),
        (chunked(b"".join(PIECES[:5]) + DONE, 50), "characters"),
        (chunked(b"".join(PIECES), 50), "without [DONE]"),
        (chunked(event(text(SEED, TOKENS), "stop") + DONE, 50), "ended with stop"),
        (HEAD + b"5\r\ndata:", "RemoteProtocolError: peer closed"),
        (chunked(PIECES[0] + b'data: {"error":{"message":"no"}}\n\n' + DONE, 50), "error event"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno", "status 503"),
        (b"nonsense\r\n\r\n", "RemoteProtocolError"),
    ],
    ids=["lost", "twice", "short", "no [DONE]", "other reason", "cut", "error", "503", "nonsense"],
)
async def test_every_other_stream_is_lost(answer: bytes, words: str) -> None:
    found = await heard(answer)
    assert (found.whole, found.refused + found.broken) == (0, 1)
    assert words in found.problems[0]


def test_growth_is_the_last_minute_against_the_first_after_the_warm_up() -> None:
    memory = Memory(
        at=[float(at) for at in range(600)],
        rss={"grows": [100.0] * 60 + [200.0] * 60 + [1000.0] * 420 + [210.0] * 60},
        open=[0] * 60 + [10] * 540,
    )
    grows = memory.growths(60.0, longest=60.0)["grows"]
    growth = grows["growth"]
    assert (grows["early_mib"], grows["late_mib"]) == (200.0, 210.0)
    assert growth == pytest.approx(0.05)
    assert memory.fewest_open(60.0) == 10
    figures = {"lost": 0, "memory": {"a": {"growth": 0.019}}}
    assert passed(figures)
    assert not passed({**figures, "memory": {"a": {"growth": growth}}})
    assert not passed({**figures, "lost": 1})
