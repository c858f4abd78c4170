"""Deadlines, limits and fair shares on the real model, through HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.system.serving import Server

pytestmark = [pytest.mark.timeout(240)]

BUDGET = 256
GOLD = hashlib.sha256(b"gold").hexdigest()[:32]
CAPPED = hashlib.sha256(b"capped").hexdigest()[:32]


@pytest.fixture(scope="module")
def fair_server() -> Iterator[Server]:
    running = Server(
        *("--max-model-len", "1024", "--num-kv-blocks", "256", "--max-num-seqs", "8"),
        *("--max-num-batched-tokens", str(BUDGET), "--scheduling-policy", "fair"),
        *("--tenants", f"{GOLD}:weight=3;{CAPPED}:max_requests=1"),
    )
    try:
        yield running
    finally:
        running.close()


def client_of(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=100)
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=120)


async def events_of(
    client: httpx.AsyncClient, key: str, prompt: list[int], tokens: int, **fields: Any
) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream; the first may be an error with its status."""
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, **fields}
    headers = {"authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        if response.status_code != 200:
            yield {"status": response.status_code, **json.loads(await response.aread())}
            return
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


async def wait_of(client: httpx.AsyncClient, key: str, prompt: list[int]) -> float:
    """Seconds to the first token of a short answer."""
    before, first = time.monotonic(), 0.0
    async for event in events_of(client, key, prompt, 2):
        assert "error" not in event, event
        first = first or time.monotonic() - before
    return first


def ids(count: int, salt: int) -> list[int]:
    """A prompt of so many tokens, like no other."""
    return [1000 + (salt * 7919 + i * 31) % 20_000 for i in range(count)]


def test_a_deadline_ends_an_answer_that_is_not_streamed(fair_server):
    body = {"prompt": ids(20, 1), "max_tokens": 900, "ignore_eos": True, "deadline_ms": 700}
    before = time.monotonic()
    status, reply = fair_server.post("/v1/completions", body)
    assert status == 408, reply
    assert reply["error"]["code"] == "request_timeout"
    assert 0.6 < time.monotonic() - before < 5


def test_a_deadline_ends_an_open_stream_and_frees_its_blocks(fair_server):
    async def run() -> None:
        async with client_of(fair_server.url) as client:
            events = [
                event async for event in events_of(client, "k", ids(20, 2), 900, deadline_ms=1500)
            ]
            *chunks, last = events
            assert len(chunks) > 2
            assert all("choices" in chunk for chunk in chunks)
            assert last["error"]["code"] == "request_timeout"
            await asyncio.sleep(0.5)
            deadline = time.monotonic() + 10
            while (await client.get("/status")).json()["engine"]["blocks_used"]:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)

    asyncio.run(run())


def test_a_tenants_second_request_at_once_is_a_429(fair_server):
    async def run() -> None:
        async with client_of(fair_server.url) as client:
            first = events_of(client, "capped", ids(10, 3), 900)
            await anext(first)
            refused = [event async for event in events_of(client, "capped", ids(10, 4), 2)]
            assert [event["status"] for event in refused] == [429]
            assert await wait_of(client, "another", ids(10, 5)) > 0
            await first.aclose()

    asyncio.run(run())


def test_a_flood_does_not_keep_a_light_tenant_waiting(fair_server):
    """Its waits stay within those alone + 2 x the bound on a step's time, which is what a whole
    budget's prompt takes by itself. One wait is left out: the machine may have other work."""

    async def run() -> None:
        async with client_of(fair_server.url) as client:
            alone = [await wait_of(client, "light", ids(30, 10 + i)) for i in range(6)]
            bound = max([await wait_of(client, "light", ids(BUDGET, 20 + i)) for i in range(3)])
            flood = [asyncio.create_task(heavy(client, number)) for number in range(40)]
            await asyncio.sleep(2)
            beside = []
            for i in range(8):
                beside.append(await wait_of(client, "light", ids(30, 40 + i)))
                await asyncio.sleep(0.3)
            status = (await client.get("/status")).json()["engine"]
            for task in flood:
                task.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
            assert status["waiting"] > 10, "there was no flood"
            assert sorted(beside)[-2] <= max(alone) + 2 * bound

    async def heavy(client: httpx.AsyncClient, number: int) -> None:
        async for event in events_of(client, "heavy", ids(200, 100 + number), 300):
            assert "error" not in event, event

    asyncio.run(run())


def test_three_to_one(fair_server):
    """Both ask for the same without end; their tokens are counted while both do."""
    got: Counter[str] = Counter()

    async def ask(client: httpx.AsyncClient, key: str, number: int) -> None:
        while True:
            number += 100
            async for event in events_of(client, key, ids(40, number), 16):
                assert "error" not in event, event
                got[key] += 1

    async def run() -> dict[str, int]:
        async with client_of(fair_server.url) as client:
            tasks = [
                asyncio.create_task(ask(client, key, number))
                for number in range(12)
                for key in ("gold", "plain")
            ]
            await asyncio.sleep(5)
            before = Counter(got)
            await asyncio.sleep(15)
            gained = {key: got[key] - before[key] for key in got}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return gained

    gained = asyncio.run(run())
    assert gained["plain"] > 30
    assert 2.6 <= gained["gold"] / gained["plain"] <= 3.4
