"""Runners look for work when the database has changed, or when time alone may have brought some."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from penstock_gateway.storage import looks as module
from penstock_gateway.storage.database import Database
from penstock_gateway.storage.held_batches import HeldBatches
from penstock_gateway.storage.looks import LOOK_EVERY, SLOWEST, WorkLooks
from penstock_gateway.storage.tables import identity, layout
from tests.gateway.batches.storing import Storing, line, storing
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.responses import test_background as background

pytestmark = pytest.mark.timeout(30)

FOREVER = 3600.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database(f"sqlite:///{tmp_path / 'penstock.db'}")
    yield found
    found.close()


@pytest.fixture
def other(database: Database, tmp_path: Path) -> Iterator[Database]:
    """Another process's way to the same records."""
    found = Database(f"sqlite:///{tmp_path / 'penstock.db'}")
    yield found
    found.close()


def write(connection: Connection) -> None:
    connection.execute(update(identity).values(name=os.urandom(8).hex()))


async def test_the_number_changes_with_what_any_process_commits(
    database: Database, other: Database
) -> None:
    seen = [await database.version()]
    for each in (database, other):
        await each.run(write)
        seen.append(await database.version())
    assert len(set(seen)) == 3


async def test_a_look_that_finds_nothing_changes_nothing(
    database: Database, other: Database
) -> None:
    before = await database.version()
    for each in (database, other):
        assert await HeldBatches(each).claim("runner", {}) is None
        await each.read(lambda connection: connection.scalar(select(layout.c.version)))
    assert await database.version() == before


async def test_a_change_that_comes_during_the_look_is_seen(
    monkeypatch: pytest.MonkeyPatch, database: Database, other: Database
) -> None:
    monkeypatch.setattr(module, "LONGEST", FOREVER)
    looks = WorkLooks(database)
    begun = await looks.begin()
    await other.run(write)  # Too late for the look.
    await looks.wait(begun)


@dataclass
class Kind:
    """A runner. records: in which it looks.  running: has it work.  one_more: whether work that
    comes is done in the end."""

    records: Callable[[Storing], Any]
    running: Callable[[Storing], AbstractAsyncContextManager[Any]]
    one_more: Callable[[Storing], Awaitable[bool]]


async def one_more_batch(gateway: Storing) -> bool:
    batch = await gateway.begin(line("a"))
    return bool((await gateway.ended(batch))["status"] == "completed")


async def one_more_response(gateway: Storing) -> bool:
    begun = await background.begin(gateway)
    ended = await background.until(gateway, begun["id"], "completed")
    return bool(ended["id"] == begun["id"])


KINDS = {
    "batches": Kind(lambda gateway: gateway.store.held, Storing.running, one_more_batch),
    "background": Kind(
        lambda gateway: gateway.store.background, background.running, one_more_response
    ),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_an_idle_runner_looks_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: FakeEngineClient, kind: Kind
) -> None:
    """And takes what comes later."""
    monkeypatch.setattr(module, "LONGEST", FOREVER)
    monkeypatch.setattr(module, "LOOK_EVERY", 0.001)
    engine.script = say("Yes.")
    async with storing(tmp_path, engine, stored_response_hours=1) as gateway:
        records, asked, claims = kind.records(gateway), 0, 0
        looked: Database = records.looks._database
        version, claim = looked.version, records.claim

        async def counted_version() -> int | None:
            nonlocal asked
            asked += 1
            return await version()

        async def counted_claim(*arguments: Any) -> Any:
            nonlocal claims
            claims += 1
            return await claim(*arguments)

        monkeypatch.setattr(looked, "version", counted_version)
        monkeypatch.setattr(records, "claim", counted_claim)
        async with kind.running(gateway):
            while asked < 30:
                await asyncio.sleep(0.01)
            assert claims == 1
            assert await kind.one_more(gateway)


async def test_what_time_brings_is_looked_for_without_a_change(
    monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    monkeypatch.setattr(module, "LONGEST", 0.05)
    looks = WorkLooks(database)
    await looks.wait(await looks.begin())


class Silent:
    """A database that doesn't say whether it has changed."""

    async def version(self) -> None:
        return None


async def test_where_the_database_does_not_say_idle_looks_become_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    looks = WorkLooks(Silent())  # type: ignore[arg-type]
    for _ in range(20):
        await looks.wait(await looks.begin())
    looks.found()
    await looks.wait(await looks.begin())
    assert pauses[0] == pauses[-1] == LOOK_EVERY
    assert pauses[:-1] == sorted(pauses[:-1])
    assert pauses[-2] == SLOWEST
