"""Stored responses and conversations that a preparer needs: the gateway has the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock_gateway.preparing.wire import encode

if TYPE_CHECKING:
    from penstock_gateway.storage.store import Store


from penstock_gateway.preparing.channel import Channel


class Recorded(msgspec.Struct, frozen=True, array_like=True):
    """A question to one of a Store's records."""

    records: str
    """An attribute of the Store: responses or conversations."""
    method: str
    owner: str
    id: str
    options: dict[str, str | int] = {}


class RecordedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """found: what the method returns.  broken, unfit: BrokenChain's and UnfitChain's words."""

    found: Any = None
    broken: str | None = None
    unfit: str | None = None


class HomeRecords:
    """In place of ResponseRecords or ConversationRecords, whose database the gateway has."""

    def __init__(self, name: str, channel: Channel, most_items: int = 0) -> None:
        self._name = name
        self._channel = channel
        self.most_items = most_items

    async def find(self, owner: str, id: str) -> str | None:
        """Does what ResponseRecords.find does."""
        found: str | None = await self._ask("find", owner, id)
        return found

    async def said(self, owner: str, id: str, *, own_id: str) -> list[str] | None:
        """Does what ConversationRecords.said does."""
        found: list[str] | None = await self._ask("said", owner, id, own_id=own_id)
        return found

    async def conversation(
        self, owner: str, id: str, *, most: int, own_id: str
    ) -> list[tuple[str, str]]:
        """Does what ResponseRecords.conversation does, and raises the same errors."""
        found = await self._ask("conversation", owner, id, most=most, own_id=own_id)
        return [(items, response) for items, response in found]

    async def _ask(self, method: str, owner: str, id: str, **options: str | int) -> Any:
        asked = Recorded(self._name, method, owner, id, options)
        answer = _recorded.decode(await self._channel.ask("records", encode(asked)))
        if answer.broken is not None or answer.unfit is not None:
            from penstock_gateway.storage.chains import BrokenChain, UnfitChain

            if answer.broken is not None:
                raise BrokenChain(answer.broken)
            raise UnfitChain(answer.unfit)
        return answer.found


_recorded = msgspec.msgpack.Decoder(RecordedAnswer)


class HomeStore:
    """In place of a Store."""

    def __init__(self, store: Store, channel: Channel) -> None:
        self.responses = None if store.responses is None else HomeRecords("responses", channel)
        self.conversations = None
        if store.conversations is not None:
            most = store.conversations.most_items
            self.conversations = HomeRecords("conversations", channel, most)
        self.background = store.background
        """None: there are no responses in the background. What there are, the gateway begins."""
