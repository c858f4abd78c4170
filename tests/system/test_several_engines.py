"""Two engine cores behind one gateway: what one leaves behind, the other finishes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from testing.serving import PATIENCE, Server, wait_until
from tests.system.test_drain import Reading, open_client, read
from tests.system.test_resumed_streams import BODIES, RESUMABLE, ask, events_of, gained

pytestmark = [pytest.mark.timeout(900)]

TWO = ("--data-parallel-size", "2", "--max-model-len", "1024", "--num-kv-blocks", "256")
STREAMS = 6
TOKENS = 96


@pytest.fixture(scope="module")
def two() -> Any:
    running = Server(*TWO)
    try:
        wait_until(lambda: ready(running) == 2, 2 * PATIENCE, lambda: running.get("/status")[1])
        yield running
    finally:
        running.close()


def engines(server: Server) -> list[dict[str, Any]]:
    return server.get("/status")[1]["engines"]


def ready(server: Server) -> int:
    return sum(each["ready"] for each in engines(server))


def counter(server: Server, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def together(url: str, on_chunks: Callable[[], None] | None = None) -> list[Reading]:
    """All streams at once; `on_chunks` is called when each of them has begun."""
    async with open_client(url) as client:
        tasks = [asyncio.create_task(read(client, n, TOKENS)) for n in range(STREAMS)]
        if on_chunks is not None:
            async with asyncio.timeout(2 * PATIENCE):
                while not await running(client, STREAMS):
                    await asyncio.sleep(0.05)
            on_chunks()
        return await asyncio.gather(*tasks)


def wait_settled(server: Server) -> None:
    """Until both engine cores have said anew that they do nothing: requests are dealt out by what
    they say, and that one was busy may be old news."""
    begun = time.monotonic()

    def settled() -> bool:
        told_within = time.monotonic() - begun
        return all(
            each["running"] == each["waiting"] == 0
            and each["status_age"] is not None
            and each["status_age"] < told_within
            for each in engines(server)
        )

    wait_until(settled, 2 * PATIENCE, lambda: engines(server))


async def running(client: httpx.AsyncClient, streams: int) -> bool:
    state = (await client.get("/status")).json()
    open_requests = [each["open_requests"] for each in state["engines"]]
    generated = sum(each["tokens_generated"] for each in state["engines"])
    return sum(open_requests) == streams and min(open_requests) > 0 and generated > 0


@pytest.fixture(scope="module")
def undisturbed(two: Server) -> list[Reading]:
    return asyncio.run(together(two.url))


@pytest.mark.parametrize(
    ("victim", "signum"),
    [("engine 0", signal.SIGKILL), ("engine 1", signal.SIGTERM), ("worker 1", signal.SIGKILL)],
)
def test_streams_are_the_same_whichever_process_leaves(two, undisturbed, victim, signum):
    wait_settled(two)
    pid = two.child(victim)
    moved = counter(two, "penstock:moved_requests_total")
    disturbed = asyncio.run(together(two.url, lambda: os.kill(pid, signum)))
    assert disturbed == undisturbed
    assert all(reading.done for reading in disturbed)
    if signum == signal.SIGKILL and victim.startswith("engine"):
        assert counter(two, "penstock:moved_requests_total") > moved
    # What left comes back by itself, and is used again. It may be leaving still.
    wait_until(lambda: two.children().get(f"penstock: {victim}") not in (None, pid), 2 * PATIENCE)
    wait_until(lambda: ready(two) == 2, 2 * PATIENCE, lambda: engines(two))


def test_a_stream_goes_on_whatever_is_known_of_the_others(two):
    """An engine core whose worker is away doesn't say what it computes with. Streams go on at the
    other one meanwhile, and those that began then go on later."""
    path, body = BODIES["three choices"]
    body = {"model": two.model, **body, **RESUMABLE, "seed": 7}
    events = events_of(ask(two, path, body))
    pid = two.child("worker 0")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: ready(two) == 1)
    rest = events_of(ask(two, path, body, events[20].id))
    assert gained([*events[:21], *rest]) == gained(events)
    events = events_of(ask(two, path, body))
    wait_until(lambda: ready(two) == 2, 2 * PATIENCE, lambda: engines(two))
    rest = events_of(ask(two, path, body, events[20].id))
    assert gained([*events[:21], *rest]) == gained(events)


def test_the_state_of_each_is_told(two):
    state = two.get("/status")[1]
    assert state["ready"]
    assert [each["index"] for each in state["engines"]] == [0, 1]
    first, second = state["engines"]
    assert first["endpoint"] != second["endpoint"]
    assert state["boot"] == f"{first['boot']},{second['boot']}"
    assert first["fingerprint"] == second["fingerprint"]
    assert state["engine"]["blocks_total"] == first["blocks_total"] + second["blocks_total"]
    assert state["engine"]["workers"] == 2


def test_a_sessions_turns_meet_at_one_engine_core(two):
    """Though they begin alike, and each is longer than the one before."""
    wait_settled(two)
    placed: list[set[str]] = []
    for session in ("a", "b", "c"):
        before, prompt = sessions_at(two), list(range(5, 105))
        for turn in range(2):
            body = {"prompt": prompt, "max_tokens": 1, "session_id": session}
            status, reply = two.post("/v1/completions", body)
            assert status == 200, reply
            assert turn == 0 or reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= 96
            prompt += range(200, 240)
            wait_settled(two)
        placed.append({name for name, count in sessions_at(two).items() if count > before[name]})
    assert all(len(engines) == 1 for engines in placed), placed


def sessions_at(server: Server) -> Counter[str]:
    """Requests that engine cores were given as turns of a session."""
    text = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text
    lines = [line for line in text.splitlines() if line.startswith("penstock:routed_requests_to")]
    return Counter(
        {
            line.rsplit(" ", 1)[0]: int(float(line.rsplit(" ", 1)[1]))
            for line in lines
            if '"session"' in line
        }
    )


def test_an_engine_that_drains_gets_nothing_new_and_nobody_is_refused(start_server, tiny_model):
    """Some requests are always open while one engine core after the other is told to leave."""
    server = start_server("--model", tiny_model, "--data-parallel-size", "2")
    wait_until(lambda: ready(server) == 2, 2 * PATIENCE, lambda: engines(server))

    async def rolling() -> int:
        asked, over = 0, asyncio.Event()

        async def ask(number: int) -> None:
            nonlocal asked
            async with open_client(server.url) as client:
                while not over.is_set():
                    body = {"prompt": [1 + number, 2, 3], "max_tokens": 20, "ignore_eos": True}
                    answer = await client.post("/v1/completions", json=body)
                    assert answer.status_code == 200, answer.text
                    asked += 1
                    await asyncio.sleep(0.05)  # Without it, they take all of the machine.

        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(ask(number))
            for name in ("engine 0", "engine 1"):
                await asyncio.sleep(0.5)
                pid = server.child(name)
                os.kill(pid, signal.SIGTERM)
                async with asyncio.timeout(2 * PATIENCE):
                    while server.children().get(f"penstock: {name}") in (None, pid):
                        await asyncio.sleep(0.05)
                    while await asyncio.to_thread(ready, server) < 2:
                        await asyncio.sleep(0.05)
            while asked <= 16:
                await asyncio.sleep(0.05)
            over.set()
        return asked

    assert asyncio.run(rolling()) > 16
