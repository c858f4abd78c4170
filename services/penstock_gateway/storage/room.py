"""Room for what an owner stores: when its rows are counted, and which make way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, func, select

PART = 256
"""The part of its bounds, 1 / PART, that an owner may store more through one process before it is
counted again."""
MOST_OWNERS = 65_536
"""Owners that are remembered; the one that was counted longest ago is forgotten."""


class Growth(NamedTuple):
    """What an owner has stored since its rows were counted."""

    rows: int
    size: int


class Tally:
    """What each owner has stored through this process since its rows were counted, so that they
    aren't counted for each of them: that takes time in proportion to their number. most,
    most_bytes: the bounds; an owner may go beyond them by a PART in each process. Any thread may
    use it."""

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most // PART
        self._most_bytes = most_bytes // PART
        self._since: dict[str, Growth] = {}
        self._lock = threading.Lock()

    def grow(self, owner: str, size: int, rows: int = 1) -> Growth | None:
        """Notes rows, or bytes of a row that grows, before the transaction is done: where it isn't,
        the owner's rows are counted a little earlier than they must be.

        Returns what `counted` is to be told, if they are to be counted now.
        """
        with self._lock:
            known = self._since.get(owner)
            if known is None:
                return Growth(0, 0)
            growth = Growth(known.rows + rows, known.size + size)
            self._since[owner] = growth
            within = growth.rows <= self._most and growth.size <= self._most_bytes
            return None if within else growth

    def counted(self, owner: str, growth: Growth) -> None:
        """The owner's rows were counted, with those of this growth, and the transaction is done."""
        with self._lock:
            known = self._since.pop(owner, growth)
            if len(self._since) >= MOST_OWNERS:
                del self._since[next(iter(self._since))]
            # What two have counted at once is taken off once.
            rows, size = max(0, known.rows - growth.rows), max(0, known.size - growth.size)
            self._since[owner] = Growth(rows, size)


SURPLUS_AT_ONCE = 500
"""Rows that are looked at and removed at a time."""


def surplus(
    connection: Connection,
    table: Table,
    owner: str,
    oldest: ColumnElement[float],
    latest: str,
    *,
    most: int,
    most_bytes: int,
) -> Iterator[list[str]]:
    """Yields ids of an owner's rows, the oldest first, until the others are no more than `most`
    and have no more than `most_bytes` together. Rows must be removed before the next are asked for.

    table: has the columns owner, id and bytes.  oldest: the column that rows are ordered by.
    latest: id of a row that stays.
    """
    mine = table.c.owner == owner
    query = select(func.count(), func.coalesce(func.sum(table.c.bytes), 0)).where(mine)
    count, size = connection.execute(query).one()
    while count > most or size > most_bytes:
        rows = select(table.c.id, table.c.bytes).where(mine, table.c.id != latest)
        gone: list[str] = []
        for row in connection.execute(rows.order_by(oldest, table.c.id).limit(SURPLUS_AT_ONCE)):
            if count <= most and size <= most_bytes:
                break
            gone.append(row.id)
            count, size = count - 1, size - row.bytes
        if not gone:
            return
        yield gone
