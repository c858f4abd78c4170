"""What a preparer asks of its gateway, which has the network, the disk and other requests' media,
and the stand-ins by which code that runs in a preparer asks it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.media.desk import MediaDesk
from penstock.media.items import PreparedItem, PreparedItems
from penstock.media.layout import ItemLayout
from penstock.media.sources import MediaSource
from penstock.media.wire import AnyItem
from penstock.model.media_facts import MediaFacts
from penstock.process.isolated_child import HEADER
from penstock_gateway.chat.documents import StoredFile
from penstock_gateway.preparing.error_data import exception_of
from penstock_gateway.preparing.wire import (
    MAX_FRAME,
    Ask,
    FromPreparer,
    Open,
    Prepare,
    Told,
    Weigh,
    encode,
    to_preparer,
)

if TYPE_CHECKING:
    from penstock_gateway.storage.store import Store


class Channel:
    """A preparer's end of its socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._tasks: asyncio.Queue[Open | Prepare | Weigh | None] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._asked = 0
        self._sending = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Tells which process this is, and begins to read."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, HEADER.pack(os.getpid()))
        self._reading = asyncio.create_task(self._read())

    async def next_task(self) -> Open | Prepare | Weigh | None:
        """None: the gateway has gone."""
        return await self._tasks.get()

    async def send(self, message: FromPreparer) -> None:
        """Raises OSError where the gateway has gone."""
        loop = asyncio.get_running_loop()
        payload = encode(message)
        async with self._sending:
            await loop.sock_sendall(self._socket, HEADER.pack(len(payload)))
            await loop.sock_sendall(self._socket, payload)

    async def ask(self, what: str, payload: bytes) -> bytes:
        """What the gateway answers. Raises what its answer failed with."""
        self._asked += 1
        number = self._asked
        told = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self.send(Ask(number, what, payload))
        return await told

    async def _read(self) -> None:
        try:
            while True:
                (size,) = HEADER.unpack(await self._receive(HEADER.size))
                if size > MAX_FRAME:
                    raise EOFError
                message = to_preparer.decode(await self._receive(size))
                if isinstance(message, Told):
                    self._hear(message)
                else:
                    self._tasks.put_nowait(message)
        except (OSError, EOFError):
            # Whatever is waited for won't come.
            os._exit(0)

    def _hear(self, told: Told) -> None:
        waiting = self._waiting.pop(told.number)
        if told.error is None:
            waiting.set_result(told.payload)
        else:
            waiting.set_exception(exception_of(told.error))

    async def _receive(self, size: int) -> bytearray:
        loop = asyncio.get_running_loop()
        buffer = bytearray(size)
        view, at = memoryview(buffer), 0
        while at < size:
            got = await loop.sock_recv_into(self._socket, view[at:])
            if not got:
                raise EOFError
            at += got
        return buffer


class SourceData(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A MediaSource of a body. file_id: of a file of the tenant's that the gateway keeps."""

    where: str
    kind: Any
    url: str | None = None
    uuid: str | None = None
    file_id: str | None = None


class MediaAsked(msgspec.Struct, frozen=True, array_like=True):
    """changes: JSON of mm_processor_kwargs; empty for none.  alike: the way in which documents are
    prepared; None: as the model has it."""

    sources: list[SourceData]
    changes: bytes = b""
    alike: AnyItem | None = None
    wants_data: bool = False
    """The items' bytes are wanted, as of documents, whose text they are."""


class ItemData(msgspec.Struct, frozen=True, array_like=True):
    """A PreparedItem; of its bytes, how many there are."""

    name: str
    digest: str
    shape: tuple[int, ...]
    size: int
    data: bytes = b""


class MediaTold(msgspec.Struct, frozen=True, array_like=True):
    """facts: by which they were prepared; None: they are none of the model's."""

    items: list[ItemData]
    facts: MediaFacts | None = None
    layouts: list[ItemLayout] = []


class HomeLease:
    """In place of a MediaLease: media are held by the gateway's own."""

    def __init__(self, tenant: str, deadline: float | None) -> None:
        self.tenant = tenant
        self.deadline = deadline


class HomeDesk:
    """In place of a MediaDesk: media are read and prepared by the gateway's."""

    def __init__(self, desk: MediaDesk, channel: Channel) -> None:
        self._channel = channel
        self.check_count = desk.check_count
        self.max_pages = desk.max_pages

    async def prepare(
        self,
        facts: MediaFacts | None,
        sources: Sequence[MediaSource],
        lease: HomeLease,
        changes: dict[str, Any] | None = None,
    ) -> PreparedItems | None:
        """As MediaDesk.prepare; the items have no bytes."""
        self.check_count(facts, sources)
        if facts is None or not sources:
            return None
        written = b"" if changes is None else msgspec.json.encode(changes)
        told = await self._told(MediaAsked([_data_of(each) for each in sources], written))
        if told.facts is None:
            return None
        return PreparedItems(told.facts, tuple(map(_item, told.items)), tuple(told.layouts))

    async def prepare_alike(
        self, preparation: AnyItem, sources: Sequence[MediaSource], lease: HomeLease
    ) -> list[PreparedItem]:
        """As MediaDesk.prepare_alike."""
        if not sources:
            return []
        given = [_data_of(each) for each in sources]
        told = await self._told(MediaAsked(given, alike=preparation, wants_data=True))
        return [_item(each) for each in told.items]

    async def _told(self, asked: MediaAsked) -> MediaTold:
        return _media.decode(await self._channel.ask("media", encode(asked)))


_media = msgspec.msgpack.Decoder(MediaTold)


def _data_of(source: MediaSource) -> SourceData:
    file = source.load.file_id if isinstance(source.load, StoredFile) else None
    return SourceData(source.where, source.kind, source.url, source.uuid, file)


def _item(data: ItemData) -> PreparedItem:
    return PreparedItem(data.name, data.data, data.digest, data.shape, data.size)


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
        """As ResponseRecords.find."""
        found: str | None = await self._ask("find", owner, id)
        return found

    async def said(self, owner: str, id: str, *, own_id: str) -> list[str] | None:
        """As ConversationRecords.said."""
        found: list[str] | None = await self._ask("said", owner, id, own_id=own_id)
        return found

    async def conversation(
        self, owner: str, id: str, *, most: int, own_id: str
    ) -> list[tuple[str, str]]:
        """As ResponseRecords.conversation, with what it raises."""
        found = await self._ask("conversation", owner, id, most=most, own_id=own_id)
        return [(items, response) for items, response in found]

    async def _ask(self, method: str, owner: str, id: str, **options: str | int) -> Any:
        asked = Recorded(self._name, method, owner, id, options)
        answer = _recorded.decode(await self._channel.ask("records", encode(asked)))
        if answer.broken is not None or answer.unfit is not None:
            from penstock_gateway.storage.response_records import BrokenChain, UnfitChain

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
