"""Many requests, and engine cores that die or stand still, with nobody to blame: real processes,
with workers that compute nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.client.engine_client import EngineClient
from penstock.config.settings import TransportSettings
from penstock.prepare import prepare
from penstock.protocol.to_frontend import Status
from penstock.request.sampling_params import SamplingParams
from testing.processes import RestartableProcess, engine, freeze, front_end, worker
from testing.serving import PATIENCE
from testing.words import text

pytestmark = [pytest.mark.timeout(600)]

REQUESTS = 60
TOKENS = 6
IMPATIENT = TransportSettings(beat_interval=0.2, peer_timeout=1.0)
NEVER = 3600.0
"""Seconds between steps of a worker that takes a second one and gives no result."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: sockets' paths must fit into a Unix socket's address."""
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        yield Path(folder)


@pytest.fixture
def parts() -> Iterator[ExitStack]:
    with ExitStack() as parts:
        yield parts


@contextlib.asynccontextmanager
async def client_of(*folders: Path) -> AsyncIterator[EngineClient]:
    endpoints = ",".join(map(front_end, folders))
    client = EngineClient(endpoints, name="test", settings=IMPATIENT)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def said(client: EngineClient, seed: int) -> str:
    """All that the request says. Raises RequestFailed where it fails."""
    params = SamplingParams(seed=seed, max_tokens=TOKENS, ignore_eos=True)
    generation = await client.submit([1000 + seed] * 30, params, name=str(seed))
    words = ""
    async for deltas in generation:
        for delta in deltas:
            assert delta.error is None, delta.error
            words += delta.text
    return words


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def boot_of(client: EngineClient) -> str:
    (only,) = client.engines
    return only.welcome.boot if only.connected and only.welcome is not None else ""


def states(client: EngineClient) -> list[Status]:
    return [each.status for each in client.engines if each.connected and each.status is not None]


def held(client: EngineClient) -> int:
    """Sequences that engine cores say they have."""
    return sum(status.waiting + status.running for status in states(client))


def begin(client: EngineClient) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(said(client, seed)) for seed in range(REQUESTS)]


async def all_as_undisturbed(asked: list[asyncio.Task[str]]) -> None:
    async with asyncio.timeout(2 * PATIENCE):
        answers = await asyncio.gather(*asked)
    assert answers == [text(seed, TOKENS) for seed in range(REQUESTS)]


async def test_engine_cores_that_die_before_a_worker_is_there_accuse_nobody(folder, parts):
    model = prepare("smollm2-135m")
    core = parts.enter_context(engine(folder, model, ()))
    async with client_of(folder) as client:
        await client.wait_connected(PATIENCE)
        asked = begin(client)
        await until(lambda: held(client) == REQUESTS)
        for _ in range(2):
            before = boot_of(client)
            core.kill()
            core.start()
            await until(lambda known=before: boot_of(client) not in ("", known))
            await until(lambda: held(client) == REQUESTS)
        parts.enter_context(worker(folder, model, 0.01))
        await all_as_undisturbed(asked)


async def pause(client: EngineClient, number: int, core: RestartableProcess) -> None:
    """The process stands still until the session with it is over, and is then met again."""
    freeze(core.pid)
    try:
        await until(lambda: not client.engines[number].connected)
    finally:
        os.kill(core.pid, signal.SIGCONT)
    await until(lambda: all(each.connected for each in client.engines))
    await until(lambda: held(client) == REQUESTS)


@pytest.mark.parametrize("computing", [False, True], ids=["waiting", "in a step"])
async def test_engine_cores_that_stand_still_accuse_nobody(folder, parts, computing):
    model = prepare("smollm2-135m")
    places = [folder / name for name in "ab"]
    for place in places:
        place.mkdir()
    cores = [parts.enter_context(engine(place, model, ())) for place in places]
    stuck = [parts.enter_context(worker(place, model, NEVER)) for place in places if computing]
    async with client_of(*places) as client:
        await until(lambda: sum(each.connected for each in client.engines) == 2)
        asked = begin(client)
        await until(lambda: held(client) == REQUESTS)
        if computing:
            await until(lambda: all(status.running for status in states(client)))
        for number in (0, 1, 0):
            await pause(client, number, cores[number])
        for each in stuck:
            os.kill(each.pid, signal.SIGTERM)
        for place in places:
            parts.enter_context(worker(place, model, 0.01))
        await all_as_undisturbed(asked)
