"""Hundreds of streams at once: all end properly, and the KV pool's books are full afterwards."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import gguf
import httpx
import pytest

from testing.serving import PATIENCE, Server
from testing.tiny_models import CHATML, write_gguf

pytestmark = [pytest.mark.timeout(900)]
STREAMS = 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of a tiny model: what is counted here is streams, and not what they say."""

    def adjust(writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(2048)
        writer.add_chat_template(CHATML)

    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(path, adjust=adjust, without=("context_length",))
    with Server(str(path)) as running:
        yield running


async def read_stream(client: httpx.AsyncClient, number: int, tokens: int) -> tuple[str, str, int]:
    """(text, finish reason, completion tokens) of one streamed completion, read to [DONE]."""
    body = {
        "prompt": f"Story number {number}:",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, reason, used, done = "", "", 0, False
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                for choice in chunk["choices"]:
                    text += choice["text"]
                    reason = choice["finish_reason"] or reason
                if chunk.get("usage"):
                    used = chunk["usage"]["completion_tokens"]
    assert done
    return text, reason, used


async def drop_stream(client: httpx.AsyncClient, number: int) -> None:
    """Reads two events of an endless stream, then hangs up."""
    body = {
        "messages": [{"role": "user", "content": f"Tell me story number {number}."}],
        "max_tokens": 1000,
        "ignore_eos": True,
        "stream": True,
    }
    events = 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            events += line.startswith("data: ")
            if events == 3:
                return
    raise AssertionError("the stream ended before it could be dropped")


def open_client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=STREAMS + 10)
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=600)


async def wait_until_idle(client: httpx.AsyncClient, seconds: float) -> dict:
    """The /status in which nothing runs or waits any more, and every block is free: what a step
    in flight refers to is freed when that step is over."""
    deadline = time.monotonic() + seconds
    while True:
        status = (await client.get("/status")).json()
        engine = status["engine"]
        busy = engine["running"] or engine["waiting"] or engine["blocks_used"]
        if not busy and not status["gateway"]["open_requests"]:
            return status
        if time.monotonic() >= deadline:
            raise TimeoutError(repr(status))
        await asyncio.sleep(0.2)


def test_200_streams_end_properly_and_free_everything(server):
    async def run() -> None:
        async with open_client(server.url) as client:
            alone = await read_stream(client, 7, 8)
            results = await asyncio.gather(*(read_stream(client, n, 8) for n in range(STREAMS)))
            assert {(reason, used) for _, reason, used in results} == {("length", 8)}
            assert results[7] == alone
            status = await wait_until_idle(client, PATIENCE)
            assert status["engine"]["blocks_free"] == status["engine"]["blocks_total"]

    asyncio.run(run())


def test_200_disconnects_in_mid_stream_free_everything(server):
    async def run() -> None:
        async with open_client(server.url) as client:
            await asyncio.gather(*(drop_stream(client, n) for n in range(STREAMS)))
            # Were they not aborted, 200 answers of 1,000 tokens would keep it busy for minutes.
            status = await wait_until_idle(client, PATIENCE)
            assert status["engine"]["blocks_free"] == status["engine"]["blocks_total"]
            assert status["gateway"]["open_requests"] == 0

    asyncio.run(run())
