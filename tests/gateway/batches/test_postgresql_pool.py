"""Several connections to PostgreSQL in a process: how many there are, what they do to each other,
what is asked, and what is there after a `kill -9`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event, make_url, select, text, update

from penstock_gateway.http.errors import HTTPError
from penstock_gateway.storage.background_records import BackgroundRecords, BackgroundWork
from penstock_gateway.storage.batch_records import BatchRecords
from penstock_gateway.storage.database import Database
from penstock_gateway.storage.file_records import FileRecords
from penstock_gateway.storage.held_batches import HeldBatches
from penstock_gateway.storage.response_records import ResponseRecords
from penstock_gateway.storage.tables import responses
from testing.postgres_server import PostgresServer, has_postgres
from testing.serving import wait_until

pytest.importorskip("psycopg", reason="no psycopg: pip install 'penstock-llm[postgres]'")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not has_postgres(), reason="no initdb (postgresql)"),
]

SIZE = 3


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url, connections=SIZE)
    yield database
    database.close()


def kept_by(database: Database) -> ResponseRecords:
    return ResponseRecords(database, most=1000, most_bytes=1 << 30, seconds=3600)


async def test_as_many_at_once_as_the_pool_has(database: Database) -> None:
    together = threading.Barrier(SIZE, timeout=60)
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock'"

    def work(connection: Connection) -> int:
        connection.execute(text("SELECT 1"))
        together.wait()
        return int(connection.scalar(text(query)) or 0)

    counts = await asyncio.gather(*(database.read(work) for _ in range(4 * SIZE)))
    assert set(counts) == {SIZE}


async def test_a_network_that_lost_its_server_is_asked(database: Database, url: str) -> None:
    def parameters(connection: Connection) -> dict[str, str]:
        driver: Any = connection.connection.driver_connection
        return dict(driver.info.get_parameters())

    names = ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
    found = await database.read(parameters)
    assert [found.get(name) for name in names] == ["15", "5", "3", "15000"]
    mine = make_url(url).update_query_dict({"keepalives_interval": "7"})
    other = Database(mine.render_as_string(hide_password=False))
    found = await other.read(parameters)
    assert [found.get(name) for name in names] == ["15", "7", "3", "15000"]
    other.close()


async def test_without_a_free_connection_the_storage_is_not_available(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database._engine.pool, "_timeout", 0.01)
    with contextlib.ExitStack() as taken:
        for _ in range(SIZE):
            taken.enter_context(database._engine.connect())
        with pytest.raises(HTTPError) as refused:
            await database.read(lambda connection: connection.scalar(text("SELECT 1")))
    assert (refused.value.status, refused.value.body.code) == (503, "storage_unavailable")
    assert await database.read(lambda connection: connection.scalar(text("SELECT 1"))) == 1


async def test_what_a_runner_shows_last_is_the_end(database: Database) -> None:
    """An end that comes while a part is being shown waits for it."""
    records = BackgroundRecords(database, kept_by(database))
    work = BackgroundWork(id="resp_a", owner="o", key_digest="", body="{}", response="queued")
    assert await records.add(work, None, "[]", 10)
    assert await records.claim("runner", ())
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    ending: list[asyncio.Future[bool]] = []
    loop = asyncio.get_running_loop()

    def between(connection: Connection, *_: object) -> None:
        """Before the part is written: has another connection end it meanwhile."""
        if ending:
            return
        ending.append(asyncio.run_coroutine_threadsafe(end(), loop))  # type: ignore[arg-type]
        wait_until(lambda: database.transaction(lambda c: c.scalar(text(waiting)), "read") == 1)

    async def end() -> bool:
        return await records.end("runner", work, "completed")

    def showing(connection: Connection, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("UPDATE penstock_responses") and "in_progress" in str(rest[0]):
            between(connection)

    event.listen(database._engine, "before_cursor_execute", showing)
    assert await records.show("runner", work, "in_progress")
    assert await asyncio.wrap_future(ending[0])  # type: ignore[arg-type]
    assert await kept_by(database).find("o", "resp_a") == "completed"


async def test_two_that_wait_for_each_other_are_both_done(database: Database) -> None:
    kept = kept_by(database)
    for id in ("a", "b"):
        await kept.save("o", id, None, "[]", "{}")
    both, tries = threading.Barrier(2, timeout=60), {"ab": 0, "ba": 0}

    def change(order: str) -> Callable[[Connection], None]:
        def work(connection: Connection) -> None:
            tries[order] += 1
            for id in order:
                mine = update(responses).where(responses.c.owner == "o", responses.c.id == id)
                connection.execute(mine.values(response=order))
                if tries[order] == 1 and id == order[0]:
                    both.wait()

        return work

    await asyncio.gather(*(database.run(change(order)) for order in ("ab", "ba")))
    assert sum(tries.values()) >= 3
    assert await kept.find("o", "a") == await kept.find("o", "b")


async def test_what_was_acknowledged_is_there_after_a_kill(
    server: PostgresServer, database: Database
) -> None:
    kept = kept_by(database)
    stored: list[str] = []
    refused: set[tuple[int, str | None]] = set()
    end = asyncio.Event()

    async def store(name: int) -> None:
        number = 0
        while not end.is_set():
            number += 1
            id = f"resp_{name}_{number}"
            try:
                await kept.save(f"o{name}", id, None, "[]", id)
            except HTTPError as error:
                refused.add((error.status, error.body.code))
                await asyncio.sleep(0.01)
            else:
                stored.append(id)

    async def more_than(count: int) -> None:
        async with asyncio.timeout(60):
            while len(stored) < count:
                await asyncio.sleep(0.01)

    writers = [asyncio.create_task(store(name)) for name in range(2 * SIZE)]
    await more_than(20)
    await asyncio.to_thread(server.kill)
    async with asyncio.timeout(60):
        while not refused:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(server.start)
    await more_than(len(stored) + 20)
    end.set()
    await asyncio.gather(*writers)
    assert refused == {(503, "storage_unavailable")}
    there = await database.read(lambda c: set(c.scalars(select(responses.c.id))))
    assert set(stored) <= there


async def test_no_request_reads_a_whole_table(database: Database) -> None:
    """What is asked at requests and by runners, as PostgreSQL would do it with many rows."""
    asked: dict[str, Any] = {}

    def hear(_: Any, __: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if not statement.startswith(("INSERT", "SELECT 1", "SELECT pg_advisory")):
            asked[statement] = parameters

    event.listen(database._engine, "before_cursor_execute", hear)
    kept, batches = kept_by(database), BatchRecords(database)
    background, files = BackgroundRecords(database, kept), FileRecords(database)
    held = HeldBatches(database)
    await kept.save("o", "a", None, "[]", "{}")
    await kept.conversation("o", "a", most=1000, own_id="b")
    await kept.find("o", "a")
    await kept.remove("o", "a")
    await kept.forget_expired()
    await held.claim("r", {"x": "o"})
    await held.hold("r", "x")
    await held.let_go("r")
    await held.counts("x")
    await batches.find("o", "x")
    await batches.page("o", limit=20)
    await batches.uses("f")
    await files.find("o", "f")
    await files.page("o", limit=20, order="desc")
    await background.claim("r", ())
    event.remove(database._engine, "before_cursor_execute", hear)

    def plans(connection: Connection) -> dict[str, str]:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        connection.execute(text("SET LOCAL enable_bitmapscan = off"))
        found = {}
        for statement, parameters in asked.items():
            rows = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
            found[statement] = "\n".join(row[0] for row in rows)
        return found

    read = {
        statement: plan
        for statement, plan in (await database.read(plans)).items()
        if any(f"Seq Scan on penstock_{name}" in plan for name in ("responses", "files", "batches"))
    }
    assert len(asked) > 15
    assert read == {}
    counting = next(each for each in asked if "count(*)" in each and "penstock_responses" in each)
    assert "Index Only Scan" in (await database.read(plans))[counting]
