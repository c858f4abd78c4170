"""How exactly the bounds of what an owner may store hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select

from penstock_gateway.storage import room
from penstock_gateway.storage.database import Database
from penstock_gateway.storage.response_records import ResponseRecords
from penstock_gateway.storage.room import PART, Tally
from penstock_gateway.storage.tables import responses


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


def test_rows_are_counted_once_for_each_part() -> None:
    tally = Tally(most=10 * PART, most_bytes=1000 * PART)
    due = [tally.is_due("a", 1) for _ in range(22)]
    assert [n for n, each in enumerate(due) if each] == [0, 11]
    assert tally.is_due("b", 1), "another owner's"
    assert not tally.is_due("b", 1000)
    assert tally.is_due("b", 1), "bytes"


def test_a_small_bound_is_exact() -> None:
    tally = Tally(most=PART - 1, most_bytes=1 << 30)
    assert all(tally.is_due("a", 1) for _ in range(5))


def test_owners_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_OWNERS", 2)
    tally = Tally(most=10 * PART, most_bytes=1000 * PART)
    assert [tally.is_due(owner, 1) for owner in "abcbca"] == [True, True, True, False, False, True]
