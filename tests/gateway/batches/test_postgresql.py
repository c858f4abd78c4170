"""The database as PostgreSQL: what stands in SQL of our own, and two processes at one table."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select, text

from penstock.config.settings import StorageSettings
from penstock.errors import StartupError
from penstock_gateway.storage.database import Database, DatabaseUnavailable
from penstock_gateway.storage.store import Store
from penstock_gateway.storage.tables import answers
from testing.postgres_server import PostgresServer, has_postgres
from tests.gateway.batches.storing import line, storing
from tests.gateway.conversations.conversing import client
from tests.gateway.conversations.test_conversations import check_shared
from tests.gateway.fake_engine import FakeEngineClient, say

pytest.importorskip("psycopg", reason="no psycopg: pip install 'penstock-llm[postgres]'")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not has_postgres(), reason="no initdb (postgresql)"),
]


async def test_two_gateways_and_two_runners_share_it(
    url: str, tmp_path: Path, engine: FakeEngineClient
) -> None:
    async with AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(storing(tmp_path / "data", engine, database_url=url))
            for _ in range(2)
        ]
        runners = [await stack.enter_async_context(each.running()) for each in both]
        content = b"".join(line(str(number)) for number in range(40))
        batches = [await both[n % 2].begin(content) for n in range(4)]
        for batch in batches:
            done = await both[0].ended(batch)
            assert done["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
            found = await both[1].results(done["output_file_id"])
            assert [each["custom_id"] for each in found] == [str(n) for n in range(40)]
        assert sum(each.counts.completed for each in runners) == 160
        await both[0].store.stock.look()
        assert both[0].store.stock.latest is not None
        assert both[0].store.stock.latest.batches == {"completed": 4}
        listed = (await both[1].http.get("/v1/files", params={"limit": 3})).json()
        assert listed["has_more"]


async def test_names_that_it_can_not_hold_are_not_there(
    url: str, tmp_path: Path, engine: FakeEngineClient
) -> None:
    """PostgreSQL's texts have no NUL."""
    more = {"database_url": url, "stored_response_hours": 1}
    async with storing(tmp_path / "data", engine, **more) as gateway:
        http = gateway.http
        for path in ("/v1/files/%00", "/v1/batches/a%00b", "/v1/responses/%00"):
            assert (await http.get(path)).status_code == 404
        assert (await http.get("/v1/files?after=%00")).status_code == 400
        body = {"input": "x", "previous_response_id": "resp_\0"}
        assert (await http.post("/v1/responses", json=body)).status_code == 404
        body = {"input_file_id": "\0", "endpoint": "/v1/completions"}
        assert (await http.post("/v1/batches", json=body)).status_code == 404
        form = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        form += b'content-disposition: form-data; name="file"; filename="a\0b"\r\n\r\n'
        form += line("a") + b"\r\n--b--\r\n"
        headers = {"content-type": "multipart/form-data; boundary=b"}
        made = await http.post("/v1/files", content=form, headers=headers)
        assert made.status_code in (200, 400), made.text
        said = {"input": "a\0b", "metadata": {"a": "\0"}}
        first = (await http.post("/v1/responses", json=said)).json()
        kept = (await http.get(f"/v1/responses/{first['id']}")).json()
        assert kept["metadata"] == said["metadata"]


async def test_a_line_has_one_answer_there(url: str, tmp_path: Path) -> None:
    """The second one of two at once stays out, without an error."""
    first, second = Database(url), Database(url)
    try:
        values = {"batch_id": "b", "number": 1, "ok": True}

        def keep(database: Database, words: str) -> bool:
            return database.transaction(
                lambda connection: database.insert_new(connection, answers, line=words, **values)
            )

        kept = await asyncio.gather(
            *(asyncio.to_thread(keep, each, name) for each, name in ((first, "x"), (second, "y")))
        )
        assert sorted(kept) == [False, True]
        rows = first.transaction(
            lambda connection: connection.execute(select(answers.c.line)).all()
        )
        assert len(rows) == 1
        assert first.id == second.id
    finally:
        first.close()
        second.close()


async def test_bounds_hold_whoever_comes_at_once(
    url: str, tmp_path: Path, engine: FakeEngineClient
) -> None:
    async with AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(
                storing(tmp_path / "data", engine, database_url=url, max_stored_files=5)
            )
            for _ in range(2)
        ]
        sent = [both[number % 2].upload(line(str(number))) for number in range(12)]
        codes = [answer.status_code for answer in await asyncio.gather(*sent)]
        assert sorted(codes) == [200] * 5 + [429] * 7


async def test_responses_go_on_and_make_way(
    url: str, tmp_path: Path, engine: FakeEngineClient
) -> None:
    engine.script = say("Yes.")
    more: dict[str, Any] = {"stored_response_hours": 1, "max_stored_responses": 2}
    async with storing(tmp_path / "data", engine, database_url=url, **more) as gateway:
        previous = None
        for words in ("One?", "Two?", "Three?"):
            body = {"input": words, "previous_response_id": previous}
            answer = await gateway.http.post("/v1/responses", json=body)
            if words == "Three?":
                assert "Two?" in bytes(engine.submitted[-1][0]).decode()
            previous = answer.json()["id"]
        await gateway.store.stock.look()
        assert gateway.store.stock.latest is not None
        assert gateway.store.stock.latest.responses == 2


async def test_two_gateways_share_conversations(
    url: str, tmp_path: Path, engine: FakeEngineClient
) -> None:
    engine.script = say("Yes.")
    async with AsyncExitStack() as stack:
        sdks = []
        for _ in range(2):
            made = storing(tmp_path / "data", engine, database_url=url, stored_response_hours=1)
            gateway = await stack.enter_async_context(made)
            sdks.append(await stack.enter_async_context(client(gateway)))
        await check_shared(sdks)
        conversation = await sdks[0].conversations.create(metadata={"a": "\0"})
        await sdks[0].conversations.items.create(
            conversation.id, items=[{"role": "user", "content": "a\0b"}]
        )
        (item,) = (await sdks[1].conversations.items.list(conversation.id)).data
        assert item.content[0].text == "a\0b"
        assert (await gateway.http.get("/v1/conversations/%00")).status_code == 404
        await sdks[1].conversations.items.delete(item.id, conversation_id=conversation.id)
        await sdks[1].conversations.delete(conversation.id)


async def test_a_database_of_the_first_layout_is_brought_up(url: str, tmp_path: Path) -> None:
    database = Database(url)

    def indices(connection: Connection) -> set[str]:
        rows = connection.execute(text("SELECT indexname FROM pg_indexes"))
        return {name for (name,) in rows if name.startswith("penstock")}

    new = database.transaction(indices)

    def older(connection: Connection) -> None:
        for name in ("responses_of_owner", "files_of_owner", "batches_open"):
            connection.execute(text(f"DROP INDEX penstock_{name}"))
        by_age = "penstock_responses_by_age ON penstock_responses (owner, created_at)"
        connection.execute(text(f"CREATE INDEX {by_age}"))
        connection.execute(text("ALTER TABLE penstock_responses DROP COLUMN bytes"))
        connection.execute(text("ALTER TABLE penstock_background DROP COLUMN origin"))
        connection.execute(text("UPDATE penstock_layout SET version = 1"))

    database.transaction(older)
    assert database.transaction(indices) != new
    database.close()
    # Two that start at once, of which one does it.
    both = await asyncio.gather(*(asyncio.to_thread(Database, url) for _ in range(2)))
    for each in both:
        found = each.transaction(
            lambda connection: connection.execute(
                text("SELECT bytes, origin FROM penstock_responses, penstock_background")
            ).all()
        )
        assert found == []
        assert each.transaction(indices) == new
        each.close()


async def test_a_batch_outlives_the_server(
    url: str, server: PostgresServer, tmp_path: Path, engine: FakeEngineClient
) -> None:
    async with storing(tmp_path / "data", engine, database_url=url) as gateway:
        batch = await gateway.begin(b"".join(line(str(number)) for number in range(10)))
        server.stop()
        assert (await gateway.http.get(f"/v1/batches/{batch}")).status_code == 503
        with pytest.raises((StartupError, DatabaseUnavailable)):
            Store(StorageSettings(data_dir=str(tmp_path), database_url=url), str(tmp_path))
        async with gateway.running():
            await asyncio.to_thread(server.start)
            done = await gateway.ended(batch)
        assert done["request_counts"] == {"total": 10, "completed": 10, "failed": 0}
