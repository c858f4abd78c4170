"""Responses that are kept for the requests that go on from them."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from sqlalchemy import ColumnElement, Connection, delete, exists, insert, select, update

from penstock_gateway.http.errors import HTTPError
from penstock_gateway.storage.chains import MAX_LINKS, BrokenChain, UnfitChain
from penstock_gateway.storage.database import Database
from penstock_gateway.storage.room import Growth, Tally, surplus
from penstock_gateway.storage.tables import background, responses


class ResponseRecords:
    """Whoever asks sees the responses of one owner only. most, most_bytes: of an owner; the oldest
    makes way (room.Tally says how exactly).  seconds: how long each is kept, from when it ended or
    was last gone on from."""

    def __init__(self, database: Database, *, most: int, most_bytes: int, seconds: int) -> None:
        self._database = database
        self._most = most
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._tally = Tally(most=most, most_bytes=most_bytes)

    async def save(
        self, owner: str, id: str, previous_id: str | None, items: str, response: str
    ) -> None:
        """Stores a response in place of the one of that id, if there is one. One that is larger
        than all of an owner's may be isn't kept."""

        def work(connection: Connection) -> None:
            self._database.alone_for(connection, owner)
            self.put(connection, owner, id, previous_id, items, response)

        await self._database.run(work)

    def put(
        self,
        connection: Connection,
        owner: str,
        id: str,
        previous_id: str | None,
        items: str,
        response: str,
    ) -> None:
        """Stores a response as `save` does, within the caller's transaction."""
        now, size = int(time.time()), _size(items, response)
        connection.execute(delete(responses).where(*_one(owner, id)))
        if size > self._most_bytes:
            return
        connection.execute(
            insert(responses).values(
                owner=owner,
                id=id,
                previous_id=previous_id,
                created_at=now,
                expires_at=now + self._seconds,
                items=items,
                response=response,
                bytes=size,
            )
        )
        self._make_room(connection, owner, id, self._tally.grow(owner, size))

    def replace(self, connection: Connection, owner: str, id: str, response: str) -> None:
        """Replaces a stored response, within the caller's transaction; does nothing where it was
        deleted."""
        columns = responses.c
        row = connection.execute(select(columns["items"], columns.bytes).where(*_one(owner, id)))
        found = row.first()
        if found is None:
            return
        items, before = found
        size = _size(items, response)
        changed = update(responses).where(*_one(owner, id))
        connection.execute(changed.values(response=response, bytes=size))
        if size > before:
            due = self._tally.grow(owner, size - before, rows=0)
            self._make_room(connection, owner, id, due)

    def _make_room(
        self, connection: Connection, owner: str, latest: str, due: Growth | None
    ) -> None:
        """Removes the oldest of the owner's that are too many, or too large together, if they are
        to be counted."""
        if due is None:
            return
        oldest, most, size = responses.c.created_at, self._most, self._most_bytes
        for gone in surplus(
            connection, responses, owner, oldest, latest, most=most, most_bytes=size
        ):
            theirs = (responses.c.owner == owner, responses.c.id.in_(gone))
            connection.execute(delete(responses).where(*theirs))
        self._database.after_commit(connection, partial(self._tally.counted, owner, due))

    async def find(self, owner: str, id: str) -> str | None:
        """The response, as it was answered."""

        def work(connection: Connection) -> str | None:
            query = select(responses.c.response).where(*_living(owner, id))
            found: str | None = connection.scalar(query)
            return found

        return await self._database.read(work)

    async def conversation(
        self, owner: str, id: str, *, most: int, own_id: str
    ) -> list[tuple[str, str]]:
        """Items and response of each link of the conversation that ends with the response `id`,
        the first one first; all of them are kept for longer now.

        most: characters of all of them together.  own_id: the response to come, which would take
        the place of one that has its id.  Raises BrokenChain; and UnfitChain for a conversation of
        more, or of more than MAX_LINKS, or one that would go round.
        """

        def work(connection: Connection) -> list[tuple[str, str]]:
            links: list[tuple[str, str]] = []
            wanted: str | None = id
            left = most
            while wanted is not None:
                if wanted == own_id:
                    raise UnfitChain(f"holds {own_id[:100]} already, the id of this response")
                row = connection.execute(select(responses).where(*_living(owner, wanted))).first()
                if row is None:
                    raise BrokenChain(wanted)
                links.append((row.items, row.response))
                ids.append(wanted)
                left -= len(row.items) + len(row.response)
                if len(links) > MAX_LINKS:
                    raise UnfitChain(f"has more than {MAX_LINKS} responses, the maximum")
                if left < 0:
                    raise UnfitChain(f"has more than {most} bytes, the maximum")
                wanted = row.previous_id
            return links[::-1]

        ids: list[str] = []
        links = await self._database.read(work)

        def keep(connection: Connection) -> None:
            longer = update(responses).where(responses.c.owner == owner, responses.c.id.in_(ids))
            connection.execute(longer.values(expires_at=int(time.time()) + self._seconds))

        with suppress(HTTPError):  # Full: they are kept as long as before.
            await self._database.run(keep)
        return links

    async def remove(self, owner: str, id: str) -> bool:
        """False: there was none."""

        def work(connection: Connection) -> bool:
            return connection.execute(delete(responses).where(*_living(owner, id))).rowcount > 0

        return await self._database.run(work, "free")

    async def forget_expired(self) -> None:
        """Removes what has expired of everybody, unless it is still worked on."""

        def work(connection: Connection) -> None:
            over = responses.c.expires_at <= int(time.time())
            connection.execute(delete(responses).where(over, ~_open()))

        await self._database.run(work, "free")

    def end(self, connection: Connection, owner: str, id: str, response: str) -> None:
        """Stores the end of one in the background, within the caller's transaction: from now on it
        is kept."""
        self.replace(connection, owner, id, response)
        ended = update(responses).where(*_one(owner, id))
        connection.execute(ended.values(expires_at=int(time.time()) + self._seconds))


def _size(items: str, response: str) -> int:
    return len(items.encode()) + len(response.encode())


def _one(owner: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return responses.c.owner == owner, responses.c.id == id


def _living(owner: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return *_one(owner, id), (responses.c.expires_at > int(time.time())) | _open()


def _open() -> ColumnElement[bool]:
    """Condition for a response that is being answered, or is to be, in the background."""
    same = background.c.owner == responses.c.owner, background.c.id == responses.c.id
    return exists().where(*same)
