"""The queue of responses in the background, where some in it are no longer kept."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, delete, func, select

from penstock_gateway.storage.background_records import BackgroundRecords, BackgroundWork
from penstock_gateway.storage.tables import background, responses
from tests.gateway.batches.storing import storing
from tests.gateway.fake_engine import FakeEngineClient

GONE = 20


def work(name: str) -> BackgroundWork:
    return BackgroundWork(id=name, owner="a", key_digest="", body="{}", response='{"output": []}')


async def fill(records: BackgroundRecords) -> None:
    """Has responses that are no longer kept stand before one that is."""
    names = [*(f"gone-{i}" for i in range(GONE)), "kept"]
    for name in names:
        assert await records.add(work(name), None, "[]", GONE + 1)

    def forget(connection: Connection) -> None:
        connection.execute(delete(responses).where(responses.c.id.in_(names[:-1])))

    await records._database.run(forget)


async def test_one_look_passes_over_all_that_are_no_longer_kept(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """Else each costs a look: where the database doesn't say whether it has changed, a second."""
    async with storing(tmp_path, engine, stored_response_hours=1) as gateway:
        records = gateway.store.background
        assert records is not None
        await fill(records)
        found = await records.claim("runner", [])
        assert found == work("kept")
        count = select(func.count()).select_from(background)
        left = await records._database.read(lambda connection: connection.scalar(count))
        assert left == 1
