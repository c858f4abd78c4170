"""How exactly the bounds of what an owner may store hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select

from penstock_gateway.storage import room
from penstock_gateway.storage.background_records import BackgroundRecords, BackgroundWork
from penstock_gateway.storage.database import Database
from penstock_gateway.storage.response_records import ResponseRecords
from penstock_gateway.storage.room import PART, Tally
from penstock_gateway.storage.tables import responses


def held(connection: Connection) -> int:
    return connection.scalar(select(func.sum(responses.c.bytes))) or 0


def is_due(tally: Tally, owner: str, size: int) -> bool:
    """Notes a row, and counts where that is due."""
    growth = tally.grow(owner, size)
    if growth is not None:
        tally.counted(owner, growth)
    return growth is not None


def count(connection: Connection) -> int:
    return connection.scalar(select(func.count()).select_from(responses)) or 0


@pytest.mark.parametrize("most", [1, 3, 9])
async def test_an_owner_has_a_part_more_at_most(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PART", 4)
    database = Database(f"sqlite:///{tmp_path / 'one.db'}")
    kept = ResponseRecords(database, most=most, most_bytes=1 << 30, seconds=3600)
    counts = []
    for number in range(most + 3 * (most // 4) + 3):
        await kept.save("o", f"resp_{number:04}", None, "[]", "{}")
        counts.append(await database.read(count))
    assert most <= max(counts) <= most + most // 4
    assert await kept.find("o", f"resp_{len(counts) - 1:04}") is not None
    database.close()


async def test_a_transaction_that_fails_takes_no_count_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PART", 4)
    database = Database(f"sqlite:///{tmp_path / 'one.db'}")
    before = ResponseRecords(database, most=100, most_bytes=1 << 30, seconds=3600)
    for number in range(12):
        await before.save("o", f"resp_{number:04}", None, "[]", "{}")
    kept = ResponseRecords(database, most=8, most_bytes=1 << 30, seconds=3600)

    def failing(connection: Connection) -> None:
        kept.put(connection, "o", "resp_a", None, "[]", "{}")
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        await database.run(failing)
    assert await database.read(count) == 12
    await kept.save("o", "resp_b", None, "[]", "{}")
    assert await database.read(count) == 8
    database.close()


async def test_bytes_of_responses_in_the_background_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come after the row: with each part that is shown, and at the end."""
    monkeypatch.setattr(room, "PART", 4)
    most = 10_000
    database = Database(f"sqlite:///{tmp_path / 'one.db'}")
    kept = ResponseRecords(database, most=1 << 20, most_bytes=most, seconds=3600)
    records = BackgroundRecords(database, kept)
    sizes = []
    for number in range(30):
        id = f"resp_{number:04}"
        work = BackgroundWork(id=id, owner="o", key_digest="", body="{}", response="queued")
        assert await records.add(work, None, "[]", 10)
        assert await records.claim("runner", ())
        assert await records.show("runner", work, "x" * 600)
        sizes.append(await database.read(held))
        assert await records.end("runner", work, "x" * 1000)
        sizes.append(await database.read(held))
    assert most < max(sizes) <= most + most // 4
    assert await kept.find("o", "resp_0029") == "x" * 1000
    database.close()


def test_rows_are_counted_once_for_each_part() -> None:
    tally = Tally(most=10 * PART, most_bytes=1000 * PART)
    due = [is_due(tally, "a", 1) for _ in range(22)]
    assert [n for n, each in enumerate(due) if each] == [0, 11]
    assert is_due(tally, "b", 1), "another owner's"
    assert not is_due(tally, "b", 1000)
    assert is_due(tally, "b", 1), "bytes"


def test_what_was_not_counted_in_the_end_stays_due() -> None:
    tally = Tally(most=10 * PART, most_bytes=1000 * PART)
    assert tally.grow("a", 1) is not None
    assert is_due(tally, "a", 1), "the first one's transaction wasn't done"
    first = tally.grow("a", 1001)
    second = tally.grow("a", 999)
    assert first is not None
    assert second is not None
    tally.counted("a", first)
    assert not is_due(tally, "a", 1), "the second one's are 999"
    assert is_due(tally, "a", 1)
    tally.counted("a", second)
    assert not is_due(tally, "a", 1000)


def test_a_small_bound_is_exact() -> None:
    tally = Tally(most=PART - 1, most_bytes=1 << 30)
    assert all(is_due(tally, "a", 1) for _ in range(5))


def test_owners_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_OWNERS", 2)
    tally = Tally(most=10 * PART, most_bytes=1000 * PART)
    assert [is_due(tally, owner, 1) for owner in "abcbca"] == [True, True, True, False, False, True]
