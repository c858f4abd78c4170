"""Room for what an owner stores: when its rows are counted, and which make way."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import ColumnElement, Connection, Table, func, select

PART = 256
"""Of its bounds: what an owner may store more through one process before it is counted again."""
MOST_OWNERS = 65_536
"""Owners that are remembered; the one that was counted longest ago is forgotten."""


class Tally:
    """What each owner has stored through this process since its rows were counted, so that they
    aren't counted for each of them: that takes time in proportion to their number. most,
    most_bytes: the bounds; an owner may go beyond them by a PART in each process."""

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most // PART
        self._most_bytes = most_bytes // PART
        self._since: dict[str, tuple[int, int]] = {}

    def is_due(self, owner: str, size: int) -> bool:
        """Notes a row of so many bytes. Returns whether the owner's rows are to be counted now."""
        known = self._since.pop(owner, None)
        if known is not None:
            count, held = known[0] + 1, known[1] + size
            if count <= self._most and held <= self._most_bytes:
                self._since[owner] = count, held
                return False
        if len(self._since) >= MOST_OWNERS:
            del self._since[next(iter(self._since))]
        self._since[owner] = 0, 0
        return True


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
