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

from testing.serving import PATIENCE, Server

pytestmark = [pytest.mark.timeout(900)]

BUDGET = 256
FEW_STEPS = 12
COUNTED = 600
"""Tokens of the lesser tenant, at least: what a round of its requests adds makes no odds then."""
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
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=400)


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
    # Before its end: 900 tokens take longer on any machine, and would be a 200.
    assert time.monotonic() - before > 0.6


def test_a_deadline_ends_an_open_stream_and_frees_its_blocks(fair_server):
    async def run() -> None:
        async with client_of(fair_server.url) as client:
            for attempt in range(6):  # How much comes in that time is the machine's affair.
                given = 1000 * 2**attempt
                stream = events_of(client, "k", ids(20, 2), 900, deadline_ms=given)
                *chunks, last = [event async for event in stream]
                if len(chunks) > 2:
                    break
            assert len(chunks) > 2
            assert all("choices" in chunk for chunk in chunks)
            assert last["error"]["code"] == "request_timeout"
            await asyncio.sleep(0.5)
            async with asyncio.timeout(PATIENCE):
                while (await client.get("/status")).json()["engine"]["blocks_used"]:
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
    """Its waits are of a few steps, where first come, first served would be thousands. Counted by
    the stream that got most tokens meanwhile, one a step, so that the machine's speed is out of it;
    one wait is left out, for what this client itself may have been late to read."""
    heard: Counter[int] = Counter()

    async def run() -> None:
        async with client_of(fair_server.url) as client:
            flood = [asyncio.create_task(heavy(client, number)) for number in range(40)]
            await waits(client)
            beside = []
            for i in range(8):
                before = Counter(heard)
                await wait_of(client, "light", ids(30, 40 + i))
                beside.append(max((heard - before).values(), default=0))
                await asyncio.sleep(0.3)
            await waits(client)
            for task in flood:
                task.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
            print(f"steps waited: {beside}")
            assert sorted(beside)[-2] <= FEW_STEPS

    async def waits(client: httpx.AsyncClient) -> None:
        """Until there is a flood."""
        async with asyncio.timeout(PATIENCE):
            while (await client.get("/status")).json()["engine"]["waiting"] <= 10:
                await asyncio.sleep(0.1)

    async def heavy(client: httpx.AsyncClient, number: int) -> None:
        """Asks without end: the flood lasts until it has been seen."""
        while True:
            number += 100
            async for event in events_of(client, "heavy", ids(200, number), 300):
                assert "error" not in event, event
                heard[number] += 1

    asyncio.run(run())


@pytest.mark.long  # tests/engine/policies/test_fairness.py has it with a simulated worker.
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
            await until_each_has(100, tasks)
            before = Counter(got)
            await until_each_has(before["plain"] + COUNTED, tasks)
            gained = {key: got[key] - before[key] for key in got}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return gained

    async def until_each_has(tokens: int, tasks: list[asyncio.Task[None]]) -> None:
        while min(got["gold"], got["plain"]) < tokens:
            await asyncio.sleep(0.01)
            for task in tasks:
                if task.done():
                    task.result()  # It asks without end, unless something went wrong.

    gained = asyncio.run(run())
    print(f"tokens: {gained}")
    assert 2.6 <= gained["gold"] / gained["plain"] <= 3.4
