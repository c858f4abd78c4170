"""What is stored, in /metrics; uploads at once; a database that an earlier version made."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock_gateway.http.errors import unavailable
from penstock_gateway.storage import store as storage
from penstock_gateway.storage.response_records import ResponseRecords
from penstock_gateway.storage.store import Stock, StockTaking, Store
from tests.gateway.batches.storing import Storing, line, storing
from tests.gateway.fake_engine import FakeEngineClient


@pytest.fixture
async def gateway(
    tmp_path: Path, engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Storing]:
    monkeypatch.setattr(storage, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(storage, "LEAST_APART", 0.0)
    settings: dict[str, Any] = {"stored_response_hours": 1, "max_uploads": 2}
    async with storing(tmp_path / "data", engine, max_tenant_uploads=1, **settings) as gateway:
        yield gateway


async def metrics(gateway: Storing) -> dict[str, float]:
    """Each sample by its name and the values of its labels, the model's apart."""
    page = await gateway.http.get("/metrics")
    assert page.status_code == 200
    return {
        " ".join([sample.name, *(v for k, v in sample.labels.items() if k != "model_name")]): (
            sample.value
        )
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }


async def test_batches_and_files_are_counted(gateway: Storing) -> None:
    before = await metrics(gateway)
    assert before["penstock:batches in_progress"] == before["penstock:stored_files"] == 0
    content = b"".join(line(str(number)) for number in range(5)) + line("x", prompt=7)
    async with gateway.running() as runner:
        gateway.app.state.service.lines = runner.counts
        await gateway.ended(await gateway.begin(content))
        after = await metrics(gateway)
    assert after["penstock:batches completed"] == 1
    assert after["penstock:batch_waiting_lines"] == 0
    assert after["penstock:batch_lines_total completed"] == 5
    assert after["penstock:batch_lines_total failed"] == 1
    assert after["penstock:batch_open_lines"] == 0
    # What was brought, the answers and the errors.
    listed = (await gateway.http.get("/v1/files")).json()["data"]
    assert after["penstock:stored_files"] == len(listed) == 3
    assert after["penstock:stored_file_bytes"] == sum(each["bytes"] for each in listed)


async def test_lines_that_wait_are_the_depth(gateway: Storing) -> None:
    gateway.engine.script = lambda prompt, params: iter([1000.0])
    content = b"".join(line(str(number)) for number in range(7))
    async with gateway.running():
        batch = await gateway.begin(content)
        while (await gateway.batch(batch))["request_counts"]["total"] == 0:
            await asyncio.sleep(0.01)
        found = await metrics(gateway)
    assert found["penstock:batches in_progress"] == 1
    assert found["penstock:batch_waiting_lines"] == 7


async def test_without_a_database_the_rest_is_shown(
    gateway: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        from sqlalchemy.exc import OperationalError

        raise OperationalError("", None, Exception("gone"))

    monkeypatch.setattr(gateway.store._database, "transaction", fails)
    found = await metrics(gateway)
    assert "penstock:stored_files" not in found
    assert "penstock:gateway_open_requests" in found


class SlowDatabase:
    """Its thread is taken for `queued` seconds, and counting takes `counting`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.queued = self.counting = 0.0
        self.fails = False
        self.looks = 0

    async def read(self, work: Callable[[Any], Any]) -> Any:
        self.looks += 1
        self.now += self.queued
        if self.fails:
            raise unavailable("gone", "storage_unavailable", 1.0)
        return work(None)

    def counted(self, _: object) -> Stock:
        self.now += self.counting
        return Stock({}, 0, self.looks, 0, 0, 0)


async def test_when_it_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own seconds count, not those of others, nor those of a database that is away."""
    database = SlowDatabase()
    monkeypatch.setattr(storage, "_counted", database.counted)
    monkeypatch.setattr(storage, "time", SimpleNamespace(monotonic=lambda: database.now))
    stock = StockTaking(database)  # type: ignore[arg-type]

    async def looks_after(seconds: float) -> bool:
        database.now += seconds
        before = database.looks
        await stock.look()
        return database.looks > before

    assert await looks_after(0)
    database.queued = 30.0
    assert await looks_after(5)
    assert not await looks_after(4.9)
    database.fails = True
    assert await looks_after(0.2)
    assert stock.latest is not None
    assert stock.latest.files == 2, "what was counted last"
    database.fails, database.queued, database.counting = False, 0.0, 0.1
    assert await looks_after(5)
    assert stock.latest.files == 4
    assert not await looks_after(19.9)
    database.counting = 60.0
    assert await looks_after(0.2)
    assert not await looks_after(299)
    assert await looks_after(1.1)


async def test_so_many_uploads_at_once(gateway: Storing) -> None:
    """There is a bound for a tenant, and one for all; whoever ends makes room."""
    go_on = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        boundary = b"--b\r\ncontent-disposition: form-data; name="
        yield boundary + b'"purpose"\r\n\r\nbatch\r\n' + boundary + b'"file"; filename="a"\r\n\r\n'
        await go_on.wait()
        yield line("a") + b"\r\n--b--\r\n"

    form = {"content-type": "multipart/form-data; boundary=b"}
    uploads = gateway.app.state.service.uploads
    sending = [
        asyncio.create_task(
            gateway.http.post(
                "/v1/files", content=slow(), headers=form | {"authorization": f"Bearer {who}"}
            )
        )
        for who in ("alice", "bob")
    ]
    while uploads.open < 2:
        await asyncio.sleep(0.01)
    own = await gateway.upload(line("b"), headers={"authorization": "Bearer alice"})
    assert own.status_code == 429
    assert own.json()["error"]["type"] == "rate_limit_error"
    assert "--max-tenant-uploads" in own.text
    other = await gateway.upload(line("b"), headers={"authorization": "Bearer carol"})
    assert other.status_code == 503
    assert "--max-uploads" in other.text
    assert other.headers["retry-after"]
    go_on.set()
    assert {answer.status_code for answer in await asyncio.gather(*sending)} == {200}
    again = await gateway.upload(line("b"), headers={"authorization": "Bearer carol"})
    assert again.status_code == 200


async def kept(records: ResponseRecords, ids: str) -> str:
    return "".join([each for each in ids if await records.find("me", each)])


async def test_the_oldest_responses_make_way_by_their_bytes(gateway: Storing) -> None:
    records = ResponseRecords(gateway.store._database, most=100, most_bytes=1000, seconds=60)
    for each in "abcd":
        await records.save("me", each, None, "[]", "x" * 198)
    assert await kept(records, "abcd") == "abcd"
    await records.save("other", "o", None, "[]", "x" * 900)
    assert await kept(records, "abcd") == "abcd"
    await records.save("me", "e", None, "[]", "ä" * 250)
    assert await kept(records, "abcde") == "cde" or await kept(records, "abcde") == "bcde"
    await records.save("me", "f", None, "[]", "x" * 998)
    assert await kept(records, "abcdef") == "f"
    # Larger than all may be together: the others stay.
    await records.save("me", "g", None, "[]", "x" * 999)
    assert await kept(records, "fg") == "f"


async def test_a_database_of_the_first_layout_is_brought_up(
    gateway: Storing, tmp_path: Path
) -> None:
    records = gateway.store.responses
    assert records is not None
    await records.save("me", "a", None, "[]", "{}")
    settings = gateway.store.settings
    with sqlite3.connect(tmp_path / "data" / "penstock.db") as old:
        old.execute("DROP INDEX penstock_responses_of_owner")
        old.execute("ALTER TABLE penstock_responses DROP COLUMN bytes")
        old.execute("ALTER TABLE penstock_background DROP COLUMN origin")
        old.execute("ALTER TABLE penstock_background DROP COLUMN not_before")
        old.execute("UPDATE penstock_layout SET version = 1")
    for _ in range(2):
        store = Store(settings, str(tmp_path / "data"))
        try:
            assert store.responses is not None
            assert await store.responses.find("me", "a") == "{}"
            await store.stock.look()
            assert store.stock.latest is not None
            assert store.stock.latest.response_bytes == 4
            assert store.background is not None
            assert await store.background.claim("a runner", []) is None
        finally:
            store.close()
