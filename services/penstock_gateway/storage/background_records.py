"""Background responses: those waiting for a runner, and those that runners hold.

As with batches, every change by a runner checks in the same transaction that it still holds the
response. A cancelled or deleted response is held by nobody.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from penstock_gateway.storage.database import Database
from penstock_gateway.storage.holds import Holds, held
from penstock_gateway.storage.looks import WorkLooks
from penstock_gateway.storage.response_records import ResponseRecords
from penstock_gateway.storage.tables import background, responses

MOST_GONE = 100
"""Responses that are no longer kept, which one look takes out of the queue at most."""


class BackgroundWork(msgspec.Struct, frozen=True, kw_only=True):
    """id: of the response.  owner: a tenant.  key_digest: SHA-256 of the API key that asked, in
    hex; empty where there are no keys.  body: of the request.  response: as clients see it now.
    origin: of the answer of which they see a part; empty: of none."""

    id: str
    owner: str
    key_digest: str
    body: str
    response: str
    origin: str = ""


class BackgroundRecords:
    """kept: where clients see responses."""

    def __init__(self, database: Database, kept: ResponseRecords) -> None:
        self._database = database
        self._kept = kept
        self._holds = Holds(background)
        self.looks = WorkLooks(database)
        """When `claim` may find something."""

    async def add(
        self, work: BackgroundWork, previous_id: str | None, items: str, most_open: int
    ) -> bool:
        """False: the owner has as many as it may that haven't ended."""

        def adding(connection: Connection) -> bool:
            self._database.alone_for(connection, work.owner)
            count = select(func.count()).where(background.c.owner == work.owner)
            if (connection.scalar(count) or 0) >= most_open:
                return False
            connection.execute(delete(background).where(*_one(work.owner, work.id)))
            connection.execute(
                insert(background).values(
                    owner=work.owner,
                    id=work.id,
                    key_digest=work.key_digest,
                    body=work.body,
                    created_at=time.time(),
                    runner="",
                    held_until=0.0,
                )
            )
            self._kept.put(connection, work.owner, work.id, previous_id, items, work.response)
            return True

        return await self._database.run(adding)

    async def claim(self, runner: str, busy: Collection[str]) -> BackgroundWork | None:
        """The oldest that nobody holds, for the runner to hold; None: there is none. busy: ids that
        the runner works on."""

        def work(connection: Connection) -> BackgroundWork | None:
            others = background.c.id.not_in(list(busy))
            free = (background.c.runner == "") & (background.c.not_before < time.time())
            ended = self._holds.ended(connection, others, ~free)
            query = select(background).where(others, free | background.c.id.in_(ended))
            query = query.order_by(background.c.created_at, background.c.id).limit(1)
            for _ in range(MOST_GONE):
                row = connection.execute(query.with_for_update(skip_locked=True)).first()
                if row is None:
                    return None
                if (taken := _take(connection, row, runner)) is not None:
                    return taken
            return None

        return await self._database.run(work)

    async def hold(self, runner: str, work: BackgroundWork) -> Literal["held", "another's", "gone"]:
        """Holds it for some seconds more, unless it is another's now, or has ended, was cancelled
        or deleted."""

        def holding(connection: Connection) -> Literal["held", "another's", "gone"]:
            mine = update(background).where(*_holds(runner, work)).values(held(runner))
            if connection.execute(mine).rowcount:
                return "held"
            there = select(background.c.id).where(*_one(work.owner, work.id))
            return "gone" if connection.scalar(there) is None else "another's"

        return await self._database.run(holding)

    async def show(
        self, runner: str, work: BackgroundWork, response: str, origin: str = ""
    ) -> bool:
        """What clients see from now on. origin: of an answer of which that is a part. False: the
        runner doesn't hold it."""

        def showing(connection: Connection) -> bool:
            if not _is_held(connection, runner, work):
                return False
            if origin:
                whose = update(background).where(*_one(work.owner, work.id))
                connection.execute(whose.values(origin=origin))
            self._kept.replace(connection, work.owner, work.id, response)
            return True

        return await self._database.run(showing)

    async def end(self, runner: str, work: BackgroundWork, response: str) -> bool:
        """Stores what clients see from now on, and that nothing is to be done any more. False: the
        runner doesn't hold it."""

        def ending(connection: Connection) -> bool:
            gone = delete(background).where(*_holds(runner, work))
            if not connection.execute(gone).rowcount:
                return False
            self._kept.end(connection, work.owner, work.id, response)
            return True

        return await self._database.run(ending)

    async def postpone(self, runner: str, work: BackgroundWork, seconds: float) -> None:
        """Gives work back for so many seconds, in which nobody takes it, if the runner still held
        it."""

        def postponing(connection: Connection) -> None:
            later = {"runner": "", "not_before": time.time() + seconds}
            connection.execute(update(background).where(*_holds(runner, work)).values(later))

        await self._database.run(postponing)

    async def let_go(self, runner: str) -> None:
        """Gives back all work of a runner that leaves."""

        await self._database.run(partial(self._holds.let_go, runner=runner))

    async def cancel(self, owner: str, id: str, response: str | None) -> bool:
        """Whoever works on it ends that. response: what clients see from now on; None: nothing.
        False: it has ended already, or never was in the background."""

        def cancelling(connection: Connection) -> bool:
            gone = connection.execute(delete(background).where(*_one(owner, id))).rowcount > 0
            if gone and response is not None:
                self._kept.end(connection, owner, id, response)
            return gone

        return await self._database.run(cancelling, "free")


def _take(connection: Connection, row: Row[Any], runner: str) -> BackgroundWork | None:
    """Has the runner hold one that nobody holds. None: its response is no longer kept."""
    mine = _one(row.owner, row.id)
    seen = select(responses.c.response).where(
        responses.c.owner == row.owner, responses.c.id == row.id
    )
    response = connection.scalar(seen)
    if response is None:  # Deleted, or it made way for others.
        connection.execute(delete(background).where(*mine))
        return None
    connection.execute(update(background).where(*mine).values(held(runner)))
    return BackgroundWork(
        id=row.id,
        owner=row.owner,
        key_digest=row.key_digest,
        body=row.body,
        response=response,
        origin=row.origin,
    )


def _one(owner: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return background.c.owner == owner, background.c.id == id


def _holds(runner: str, work: BackgroundWork) -> tuple[ColumnElement[bool], ...]:
    return *_one(work.owner, work.id), background.c.runner == runner


def _is_held(connection: Connection, runner: str, work: BackgroundWork) -> bool:
    query = select(background.c.id).where(*_holds(runner, work))
    # Until the transaction is done, nobody ends or cancels it.
    return connection.execute(query.with_for_update()).first() is not None
