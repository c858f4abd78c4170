"""Counts what is stored, all in all, for metrics."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from penstock_gateway.http.errors import HTTPError
from penstock_gateway.storage.database import Database
from penstock_gateway.storage.records import ENDED
from penstock_gateway.storage.tables import answers, batches, files, responses

LOOK_EVERY = 5.0
"""Seconds for which what was counted is good enough. It costs a look at every file's record."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What is stored for all tenants.  batches: how many, by status.  waiting_lines: of batches
    that haven't ended, without an answer; those of a file that hasn't been read yet aren't
    known."""

    batches: dict[str, int]
    waiting_lines: int
    files: int
    file_bytes: int
    responses: int
    response_bytes: int


class StockTaking:
    """Counts no more often than it has to, whoever asks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counting = asyncio.Lock()
        self._counted_at = float("-inf")
        self.latest: Stock | None = None
        """The latest counts; None while the database has given no answer."""

    async def look(self) -> None:
        """Sees to it that `latest` is some seconds old at most."""
        async with self._counting:
            if time.monotonic() - self._counted_at < LOOK_EVERY:
                return
            try:
                self.latest = await self._database.read(_counted)
            except HTTPError:
                self.latest = None
            self._counted_at = time.monotonic()


def _counted(connection: Connection) -> Stock:
    by_status = select(batches.c.status, func.count()).group_by(batches.c.status)
    found = {str(status): int(count) for status, count in connection.execute(by_status)}
    total = select(func.coalesce(func.sum(batches.c.total), 0)).where(
        batches.c.status.not_in(ENDED)
    )
    # There are answers in the database only of batches that haven't ended.
    answered = connection.scalar(select(func.count()).select_from(answers)) or 0
    size = func.coalesce(func.sum(files.c.bytes), 0)
    count, held = connection.execute(select(func.count(), size).select_from(files)).one()
    size = func.coalesce(func.sum(responses.c.bytes), 0)
    kept, taken = connection.execute(select(func.count(), size).select_from(responses)).one()
    return Stock(
        batches=found,
        waiting_lines=max(0, int(connection.scalar(total) or 0) - int(answered)),
        files=int(count),
        file_bytes=int(held),
        responses=int(kept),
        response_bytes=int(taken),
    )
