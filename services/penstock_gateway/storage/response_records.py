"""Responses that are kept for the requests that go on from them."""

from __future__ import annotations

import time

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from penstock_gateway.storage.database import Database
from penstock_gateway.storage.tables import responses

MAX_LINKS = 1000
"""Responses of one conversation."""


class BrokenChain(Exception):
    """A response is not there. id: its."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id


class ResponseRecords:
    """Whoever asks sees the responses of one owner only. most: of an owner; the oldest makes way.
    seconds: how long each is kept, from when it was last gone on from."""

    def __init__(self, database: Database, *, most: int, seconds: int) -> None:
        self._database = database
        self._most = most
        self._seconds = seconds

    async def save(
        self, owner: str, id: str, previous_id: str | None, items: str, response: str
    ) -> None:
        """In place of the one of that id, if there is one."""

        def work(connection: Connection) -> None:
            now = int(time.time())
            connection.execute(delete(responses).where(*_one(owner, id)))
            connection.execute(
                insert(responses).values(
                    owner=owner,
                    id=id,
                    previous_id=previous_id,
                    created_at=now,
                    expires_at=now + self._seconds,
                    items=items,
                    response=response,
                )
            )
            old = (
                select(responses.c.id)
                .where(responses.c.owner == owner)
                .order_by(responses.c.created_at.desc(), responses.c.id)
                .offset(self._most)
            )
            ids = [row.id for row in connection.execute(old)]
            if ids:
                gone = delete(responses).where(responses.c.owner == owner)
                connection.execute(gone.where(responses.c.id.in_(ids)))

        await self._database.run(work)

    async def find(self, owner: str, id: str) -> str | None:
        """The response, as it was answered."""

        def work(connection: Connection) -> str | None:
            query = select(responses.c.response).where(*_living(owner, id))
            found: str | None = connection.scalar(query)
            return found

        return await self._database.run(work)

    async def conversation(self, owner: str, id: str) -> list[tuple[str, str]]:
        """Items and response of each link of the conversation that ends with the response `id`,
        the first one first; all of them are kept for longer now. Raises BrokenChain, and ValueError
        for one of more than MAX_LINKS."""

        def work(connection: Connection) -> list[tuple[str, str]]:
            links: list[tuple[str, str]] = []
            ids: list[str] = []
            wanted: str | None = id
            while wanted is not None:
                row = connection.execute(select(responses).where(*_living(owner, wanted))).first()
                if row is None:
                    raise BrokenChain(wanted)
                links.append((row.items, row.response))
                ids.append(wanted)
                if len(links) > MAX_LINKS:
                    raise ValueError(f"more than {MAX_LINKS} responses")
                wanted = row.previous_id
            longer = update(responses).where(responses.c.owner == owner, responses.c.id.in_(ids))
            connection.execute(longer.values(expires_at=int(time.time()) + self._seconds))
            return links[::-1]

        return await self._database.run(work)

    async def remove(self, owner: str, id: str) -> bool:
        """False: there was none."""

        def work(connection: Connection) -> bool:
            return connection.execute(delete(responses).where(*_living(owner, id))).rowcount > 0

        return await self._database.run(work)

    async def forget_expired(self) -> None:
        """Of everybody."""

        def work(connection: Connection) -> None:
            connection.execute(delete(responses).where(responses.c.expires_at <= int(time.time())))

        await self._database.run(work)


def _one(owner: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return responses.c.owner == owner, responses.c.id == id


def _living(owner: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return *_one(owner, id), responses.c.expires_at > int(time.time())
