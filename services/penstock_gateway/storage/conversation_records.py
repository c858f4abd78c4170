"""Conversations: lists of items that responses go on from, and add to.

Every change is one transaction, in which the conversation's row says where the next item stands. So
items that are added at once, by whichever gateway, follow one another, and those of one addition
stay together; of a process that dies, all of an addition is there or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from penstock_gateway.storage.database import Database
from penstock_gateway.storage.records import ConversationItem, ConversationRecord, Order
from penstock_gateway.storage.room import Tally, surplus
from penstock_gateway.storage.tables import conversation_items, conversations

AT_ONCE = 500
"""Conversations that one statement removes, and items that one adds."""


class ConversationGone(Exception):
    """Raised if the conversation isn't there."""


class ConversationFull(Exception):
    """Raised if a conversation can't hold what is to be added. Its text says why."""


class ConversationRecords:
    """Whoever asks sees the conversations of one owner only.  most, most_bytes: of an owner; those
    that weren't used for longest make way.  most_items: of one.  seconds: how long each is kept,
    from when it was last used."""

    def __init__(
        self, database: Database, *, most: int, most_items: int, most_bytes: int, seconds: int
    ) -> None:
        self._database = database
        self._most = most
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._tally = Tally(most=most, most_bytes=most_bytes)
        self.most_items = most_items

    async def create(
        self,
        owner: str,
        record: ConversationRecord,
        items: Sequence[ConversationItem],
        most_bytes: int,
    ) -> None:
        """most_bytes: of its items. Raises ConversationFull."""

        def work(connection: Connection) -> None:
            self._database.alone_for(connection, owner)
            connection.execute(
                insert(conversations).values(
                    owner=owner,
                    id=record.id,
                    created_at=record.created_at,
                    metadata=_metadata(record.metadata),
                    next_place=0,
                    item_count=0,
                    bytes=0,
                    **self._used(),
                )
            )
            self._add(connection, owner, record.id, items, "", most_bytes)
            self._make_room(connection, owner, record.id, items)

        await self._database.run(work)

    async def find(self, owner: str, id: str) -> ConversationRecord | None:
        """The owner's conversation of this id; None if there is none."""

        def work(connection: Connection) -> ConversationRecord | None:
            row = _row(connection, owner, id)
            return None if row is None else _record(row)

        return await self._database.read(work)

    async def describe(
        self, owner: str, id: str, metadata: dict[str, str]
    ) -> ConversationRecord | None:
        """Replaces its metadata. None: there is none."""

        def work(connection: Connection) -> ConversationRecord | None:
            changed = update(conversations).where(*_living(owner, id))
            connection.execute(changed.values(metadata=_metadata(metadata), **self._used()))
            row = _row(connection, owner, id)
            return None if row is None else _record(row)

        return await self._database.run(work)

    async def remove(self, owner: str, id: str) -> bool:
        """Removes a conversation with its items. Returns False if there was none."""

        def work(connection: Connection) -> bool:
            there = _row(connection, owner, id) is not None
            _remove(connection, owner, [id])
            return there

        return await self._database.run(work, "free")

    async def append(
        self,
        owner: str,
        id: str,
        items: Sequence[ConversationItem],
        *,
        most_bytes: int,
        response: str = "",
    ) -> None:
        """Adds the items at the end.  most_bytes: of all of the conversation.  response: which
        brings them, in place of what one of that id brought before.  Raises ConversationGone and
        ConversationFull."""

        def work(connection: Connection) -> None:
            self._database.alone_for(connection, owner)
            if response:
                mine = *_items_of(owner, id), conversation_items.c.response == response
                _remove_items(connection, owner, id, mine)
            self._add(connection, owner, id, items, response, most_bytes)
            self._make_room(connection, owner, id, items)

        await self._database.run(work)

    async def said(self, owner: str, id: str, *, own_id: str) -> list[str] | None:
        """All of its items, the first one first, but for those that the response `own_id` brought,
        which is being answered again. It is kept for longer now. None: there is none."""

        def work(connection: Connection) -> list[str] | None:
            changed = update(conversations).where(*_living(owner, id))
            if not connection.execute(changed.values(self._used())).rowcount:
                return None
            query = select(conversation_items.c.item).where(*_items_of(owner, id))
            if own_id:
                query = query.where(conversation_items.c.response != own_id)
            rows = connection.execute(query.order_by(conversation_items.c.place))
            return [row.item for row in rows]

        return await self._database.run(work)

    async def page(
        self, owner: str, id: str, *, limit: int, order: Order, after: str | None
    ) -> list[str] | None:
        """Items by place, those after the item `after`; one more than `limit` where there are more.
        None: there is no such conversation, or no such item in it."""

        def work(connection: Connection) -> list[str] | None:
            if _row(connection, owner, id) is None:
                return None
            place = conversation_items.c.place
            query = select(conversation_items.c.item).where(*_items_of(owner, id))
            if after is not None:
                at = connection.scalar(select(place).where(*_item(owner, id, after)))
                if at is None:
                    return None
                query = query.where(place > at if order == "asc" else place < at)
            query = query.order_by(place if order == "asc" else place.desc())
            return [row.item for row in connection.execute(query.limit(limit + 1))]

        return await self._database.read(work)

    async def item(self, owner: str, id: str, item_id: str) -> str | None:
        """An item of a conversation, as JSON; None if there is no such conversation, or no such
        item in it."""

        def work(connection: Connection) -> str | None:
            if _row(connection, owner, id) is None:
                return None
            query = select(conversation_items.c.item).where(*_item(owner, id, item_id))
            found: str | None = connection.scalar(query)
            return found

        return await self._database.read(work)

    async def remove_item(self, owner: str, id: str, item_id: str) -> ConversationRecord | None:
        """The conversation without the item. None: there is no such conversation, or no such item
        in it."""

        def work(connection: Connection) -> ConversationRecord | None:
            self._database.alone_for(connection, owner)
            row = _row(connection, owner, id)
            gone = row is not None and _remove_items(
                connection, owner, id, _item(owner, id, item_id)
            )
            return _record(row) if row is not None and gone else None

        return await self._database.run(work, "free")

    async def forget_expired(self) -> None:
        """Removes expired conversations of everybody; some at a time."""

        def work(connection: Connection) -> None:
            over = conversations.c.expires_at <= int(time.time())
            query = select(conversations.c.owner, conversations.c.id).where(over).limit(AT_ONCE)
            for row in connection.execute(query).all():
                _remove(connection, row.owner, [row.id])

        await self._database.run(work, "free")

    def _add(
        self,
        connection: Connection,
        owner: str,
        id: str,
        items: Sequence[ConversationItem],
        response: str,
        most_bytes: int,
    ) -> None:
        row = _row(connection, owner, id)
        if row is None:
            raise ConversationGone
        count = row.item_count + len(items)
        size = row.bytes + sum(each.size for each in items)
        if count > self.most_items:
            raise ConversationFull(f"would have {count} items; it may have {self.most_items}")
        limit = min(most_bytes, self._most_bytes)
        if size > limit:
            raise ConversationFull(f"would have {size} bytes; it may have {limit}")
        values = [
            {
                "owner": owner,
                "conversation": id,
                "place": row.next_place + number,
                "id": each.id,
                "response": response,
                "item": each.item,
                "bytes": each.size,
            }
            for number, each in enumerate(items)
        ]
        for start in range(0, len(values), AT_ONCE):
            connection.execute(insert(conversation_items), values[start : start + AT_ONCE])
        changed = update(conversations).where(*_one(owner, id))
        place = row.next_place + len(items)
        connection.execute(
            changed.values(next_place=place, item_count=count, bytes=size, **self._used())
        )

    def _make_room(
        self, connection: Connection, owner: str, latest: str, items: Sequence[ConversationItem]
    ) -> None:
        """Removes those of the owner's that weren't used for longest and are too many, or too large
        together. items: that were added."""
        due = self._tally.grow(owner, sum(each.size for each in items))
        if due is None:
            return
        oldest, most, size = conversations.c.used_at, self._most, self._most_bytes
        for gone in surplus(
            connection, conversations, owner, oldest, latest, most=most, most_bytes=size
        ):
            _remove(connection, owner, gone)
        self._database.after_commit(connection, partial(self._tally.counted, owner, due))

    def _used(self) -> dict[str, float]:
        now = time.time()
        return {"used_at": now, "expires_at": int(now) + self._seconds}


def _remove_items(
    connection: Connection, owner: str, id: str, which: Iterable[ColumnElement[bool]]
) -> bool:
    """False: there were none."""
    which = tuple(which)
    size = func.coalesce(func.sum(conversation_items.c.bytes), 0)
    count, freed = connection.execute(select(func.count(), size).where(*which)).one()
    if not count:
        return False
    connection.execute(delete(conversation_items).where(*which))
    left = {
        "item_count": conversations.c.item_count - int(count),
        "bytes": conversations.c.bytes - int(freed),
    }
    connection.execute(update(conversations).where(*_one(owner, id)).values(left))
    return True


def _remove(connection: Connection, owner: str, ids: Sequence[str]) -> None:
    items = conversation_items.c
    gone = delete(conversation_items).where(items.owner == owner, items.conversation.in_(ids))
    connection.execute(gone)
    mine = conversations.c.owner == owner, conversations.c.id.in_(ids)
    connection.execute(delete(conversations).where(*mine))


def _row(connection: Connection, owner: str, id: str) -> Row[Any] | None:
    return connection.execute(select(conversations).where(*_living(owner, id))).first()


def _record(row: Row[Any]) -> ConversationRecord:
    metadata = msgspec.json.decode(row.metadata, type=dict[str, str])
    return ConversationRecord(id=row.id, created_at=row.created_at, metadata=metadata)


def _metadata(metadata: dict[str, str]) -> str:
    return msgspec.json.encode(metadata).decode()


def _one(owner: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return conversations.c.owner == owner, conversations.c.id == id


def _living(owner: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return *_one(owner, id), conversations.c.expires_at > int(time.time())


def _items_of(owner: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return conversation_items.c.owner == owner, conversation_items.c.conversation == id


def _item(owner: str, id: str, item_id: str) -> tuple[ColumnElement[bool], ...]:
    return *_items_of(owner, id), conversation_items.c.id == item_id
