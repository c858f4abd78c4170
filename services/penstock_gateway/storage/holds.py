"""Rows that processes work on, each held by one of them.

A process holds a row for HOLD_SECONDS, counted from when it last renewed the hold, on the clock of
who looks: one that watches a hold for so long without seeing it renewed takes the row. No two
machines need to agree on the time, and none needs to keep it: a clock may be set back. If a process
dies, others take its rows that way. One that was frozen, and wakes, finds that it holds nothing any
more: every change to a row checks that in the same transaction.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, select, update

HOLD_SECONDS = 15.0
MOST_WATCHED = 1000
"""Holds that one look sees."""


class Holds:
    """What one process has seen of the holds on a table's rows.

    table: has the columns id, runner and held_until.  working: which rows are worked on at all.
    """

    def __init__(self, table: Table, *working: ColumnElement[bool]) -> None:
        self._table = table
        self._working = working
        self._seen: dict[tuple[Any, ...], tuple[float, float]] = {}

    def ended(self, connection: Connection, *held: ColumnElement[bool]) -> list[str]:
        """Ids of rows whose hold hasn't been renewed for so long. held: which rows to look at."""
        rows = self._table.c
        query = select(rows.runner, *self._table.primary_key, rows.held_until).where(*held)
        now = time.monotonic()
        before, self._seen = self._seen, {}
        for *key, until in connection.execute(query.limit(MOST_WATCHED)):
            known = before.get(tuple(key))
            since = known[1] if known is not None and known[0] == until else now
            self._seen[tuple(key)] = until, since
        return [key[-1] for key, (_, since) in self._seen.items() if now - since > HOLD_SECONDS]

    def let_go(self, connection: Connection, runner: str) -> None:
        """Gives back all rows of a runner that leaves."""
        mine = update(self._table).where(self._table.c.runner == runner, *self._working)
        connection.execute(mine.values(runner="", held_until=0.0))


def held(runner: str) -> dict[str, object]:
    """The values of a row that the runner takes, or holds on to."""
    return {"runner": runner, "held_until": time.time() + HOLD_SECONDS}
