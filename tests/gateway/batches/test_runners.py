"""Runners of batches: who takes which, whose turn it is, and what outlives them."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from penstock.config.settings import GatewayConfig
from penstock.errors import Overloaded
from penstock_gateway.batches import run
from penstock_gateway.storage import held_batches, holds
from penstock_gateway.storage.held_batches import OF_OWNER
from penstock_gateway.storage.records import RequestCounts
from tests.gateway.batches.storing import Storing, line, storing
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.keyring import ALICE, BOB, bearer, key, write


async def test_a_line_that_finds_no_room_comes_again(gateway: Storing, monkeypatch) -> None:
    monkeypatch.setattr(run, "LONGEST_PAUSE", 0.01)
    refusals = itertools.count()

    def script(prompt: list[int], params: Any) -> Any:
        if next(refusals) < 3:
            return [Overloaded("no room", retry_after=1.0)]
        return say("ab")(prompt, params)

    gateway.engine.script = script
    async with gateway.running():
        batch = await gateway.ended(await gateway.begin(line("a")))
    assert batch["request_counts"]["completed"] == 1
    assert len(gateway.engine.terms) == 4


async def test_a_runner_that_dies_leaves_its_work_to_another(gateway: Storing, monkeypatch) -> None:
    """What was answered isn't asked again; what was under way is."""
    monkeypatch.setattr(holds, "HOLD_SECONDS", 1.5)
    asked: list[str] = []
    held = asyncio.Event()

    def script(prompt: list[int], params: Any) -> Any:
        text = bytes(prompt).decode()
        asked.append(text)
        if text == "stuck" and asked.count("stuck") == 1:
            held.set()
            yield 1000.0
        yield from say("ab")(prompt, params)

    gateway.engine.script = script
    content = line("a", prompt="one") + line("b", prompt="stuck") + line("c", prompt="three")
    batch_id = await gateway.begin(content)
    # Frozen: it holds its batch, and says so no more.
    monkeypatch.setattr(gateway.store.held, "let_go", _nothing)
    async with gateway.running():
        await held.wait()
        while (await gateway.batch(batch_id))["request_counts"]["completed"] < 2:
            await asyncio.sleep(0.01)
    async with gateway.running():
        batch = await gateway.ended(batch_id)
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert sorted(asked) == ["one", "stuck", "stuck", "three"]
    found = await gateway.results(batch["output_file_id"])
    assert [each["custom_id"] for each in found] == ["a", "b", "c"]


async def test_a_clock_that_is_set_back_keeps_nothing_waiting(
    gateway: Storing, monkeypatch
) -> None:
    """The clock goes back by an hour when the runner that holds a batch has just died."""
    monkeypatch.setattr(holds, "HOLD_SECONDS", 1.5)
    batch_id = await gateway.begin(line("a"))
    assert await gateway.store.held.claim("dead", {}) is not None
    now = time.time
    monkeypatch.setattr(held_batches.time, "time", lambda: now() - 3600)
    assert await gateway.store.held.claim("other", {}) is None
    async with gateway.running(), asyncio.timeout(60):
        batch = await gateway.ended(batch_id)
    assert batch["request_counts"]["completed"] == 1


async def test_a_clock_that_is_set_forward_takes_nothing_from_a_runner(
    gateway: Storing, monkeypatch
) -> None:
    await gateway.begin(line("a"))
    assert await gateway.store.held.claim("working", {}) is not None
    now = time.time
    monkeypatch.setattr(held_batches.time, "time", lambda: now() + 3600)
    assert await gateway.store.held.claim("other", {}) is None


async def _nothing(_: str) -> None:
    return


async def test_an_answer_stands_once(gateway: Storing) -> None:
    batch_id = await gateway.begin(line("a"))
    batches = gateway.store.held
    assert not await batches.answer("one", batch_id, 0, '{"zeroth": 0}', ok=True)
    await batches.claim("one", {})
    assert await batches.answer("one", batch_id, 0, '{"first": 1}', ok=True)
    assert await batches.answer("one", batch_id, 0, '{"second": 2}', ok=False)
    assert list(batches.lines(batch_id, ok=True)) == [b'{"first": 1}\n']
    assert list(batches.lines(batch_id, ok=False)) == []


async def test_one_runner_holds_a_batch(gateway: Storing, monkeypatch) -> None:
    batch_id = await gateway.begin(line("a"))
    batches = gateway.store.held
    claimed = await batches.claim("one", {})
    assert claimed is not None
    assert claimed.record.id == batch_id
    assert await batches.claim("two", {}) is None
    assert await batches.hold("two", batch_id) is None
    assert await batches.hold("one", batch_id) == "validating"
    await batches.let_go("one")
    assert (await batches.claim("two", {})).record.id == batch_id  # type: ignore[union-attr]
    assert await batches.hold("one", batch_id) is None
    # Whoever wakes to find that another has it changes nothing.
    late = (batches.begin("one", batch_id, 1), batches.finalize("one", batch_id))
    assert [await each for each in late] == [False, False]
    assert not await batches.refuse("one", batch_id, [])
    assert not await batches.end("one", claimed, "completed", RequestCounts(1, 1, 0), [])
    assert (await gateway.batch(batch_id))["status"] == "validating"


async def test_no_runner_takes_its_own_batch_twice(gateway: Storing, monkeypatch) -> None:
    """It was frozen for longer than it may hold it, and wakes."""
    batch_id = await gateway.begin(line("a"))
    claimed = await gateway.store.held.claim("one", {})
    later = time.time() + 1000
    monkeypatch.setattr("penstock_gateway.storage.held_batches.time.time", lambda: later)
    assert await gateway.store.held.claim("one", {batch_id: claimed.owner}) is None
    assert await gateway.store.held.hold("one", batch_id) == "validating"


async def test_who_has_fewest_at_work_is_next(tmp_path: Path, engine: FakeEngineClient) -> None:
    keys = write(tmp_path / "keys.json", key(ALICE), key(BOB))
    config = GatewayConfig(api_keys=keys)
    async with storing(tmp_path / "data", engine, config=config) as gateway:
        for _ in range(2):
            await gateway.begin(line("a"), bearer(ALICE))
        await gateway.begin(line("a"), bearer(BOB))
        batches = gateway.store.held
        owners: list[str] = []
        busy: dict[str, str] = {}
        for _ in range(3):
            work = await batches.claim("runner", busy)
            assert work is not None
            busy[work.record.id] = work.owner
            owners.append(work.owner)
        assert owners[0] != owners[1]


async def test_a_runner_outlives_its_database(gateway: Storing, monkeypatch) -> None:
    """A disk that is full, or a database that is started again, ends no process."""
    claim, calls = gateway.store.held.claim, itertools.count()

    async def failing(runner: str, busy: Any) -> Any:
        if next(calls) < 2:
            raise OperationalError("BEGIN", {}, Exception("database or disk is full"))
        return await claim(runner, busy)

    monkeypatch.setattr(gateway.store.held, "claim", failing)
    async with gateway.running():
        batch = await asyncio.wait_for(gateway.ended(await gateway.begin(line("a"))), 10)
    assert batch["status"] == "completed"


async def test_lines_that_may_not_be_asked_yet_hold_up_no_other_batch(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """A key has used up what it may ask in a minute; another hasn't."""
    keys = write(tmp_path / "keys.json", key(ALICE, requests_per_minute=1), key(BOB))
    config = GatewayConfig(api_keys=keys)
    folder = tmp_path / "data"
    async with (
        storing(folder, engine, config=config, batch_concurrency=2) as gateway,
        gateway.running(),
    ):
        many = b"".join(line(str(number)) for number in range(6))
        limited = await gateway.begin(many, bearer(ALICE))
        while (await gateway.batch(limited, bearer(ALICE)))["request_counts"]["completed"] < 1:
            await asyncio.sleep(0.01)
        other = await gateway.begin(many, bearer(BOB))
        batch = await asyncio.wait_for(gateway.ended(other, bearer(BOB)), 10)
        assert batch["request_counts"]["completed"] == 6
        assert (await gateway.batch(limited, bearer(ALICE)))["status"] == "in_progress"


async def test_batches_that_only_wait_hold_up_no_other(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """However many of them a tenant has."""
    keys = write(tmp_path / "keys.json", key(ALICE, requests_per_minute=1), key(BOB))
    config = GatewayConfig(api_keys=keys)
    async with (
        storing(tmp_path / "data", engine, config=config, max_open_batches=100) as gateway,
        gateway.running(),
    ):
        two = line("a") + line("b")
        waiting = [await gateway.begin(two, bearer(ALICE)) for _ in range(OF_OWNER + 4)]
        while len(await at_work(gateway, waiting)) < OF_OWNER:
            await asyncio.sleep(0.01)
        other = await gateway.begin(two, bearer(BOB))
        batch = await asyncio.wait_for(gateway.ended(other, bearer(BOB)), 10)
        assert batch["request_counts"]["completed"] == 2
        assert len(await at_work(gateway, waiting)) == OF_OWNER


async def at_work(gateway: Storing, batches: list[str]) -> list[str]:
    states = [(await gateway.batch(each, bearer(ALICE)))["status"] for each in batches]
    return [status for status in states if status == "in_progress"]
