"""Media of a body that a preparer works on: the gateway reads and prepares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.media.desk import MediaDesk
from penstock.media.item_names import PreparedItems
from penstock.media.items import PreparedItem
from penstock.media.layout import ItemLayout
from penstock.media.sources import MediaSource
from penstock.media.wire import AnyItem
from penstock.model.media_facts import MediaFacts
from penstock_gateway.preparing.channel import Channel
from penstock_gateway.preparing.wire import encode
from penstock_gateway.storage.stored_file import StoredFile


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
    lease: int = 0
    """The preparer's number of what holds the media."""
    deadline: float | None = None
    """The lease's deadline, if any."""
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
    """In place of a MediaLease: media are held by the gateway's own, of this number."""

    def __init__(
        self, tenant: str, deadline: float | None, number: int = 0, channel: Channel | None = None
    ) -> None:
        self.tenant = tenant
        self.deadline = deadline
        self.number = number
        self._channel = channel

    def __enter__(self) -> HomeLease:
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None:
            self._channel.tell("release", self.number.to_bytes(8))


class HomeDesk:
    """In place of a MediaDesk: media are read and prepared by the gateway's."""

    def __init__(self, desk: MediaDesk, channel: Channel) -> None:
        self._channel = channel
        self._leases = 0
        self.check_count = desk.check_count
        self.max_pages = desk.max_pages

    def lease(self, tenant: str, deadline: float | None = None) -> HomeLease:
        """Returns a lease like MediaDesk.lease."""
        self._leases += 1
        return HomeLease(tenant, deadline, self._leases, self._channel)

    async def prepare(
        self,
        facts: MediaFacts | None,
        sources: Sequence[MediaSource],
        lease: HomeLease,
        changes: dict[str, Any] | None = None,
    ) -> PreparedItems | None:
        """Does what MediaDesk.prepare does, but the items have no bytes."""
        self.check_count(facts, sources)
        if facts is None or not sources:
            return None
        written = b"" if changes is None else msgspec.json.encode(changes)
        reply = await self._ask(sources, lease, changes=written)
        if reply.facts is None:
            return None
        return PreparedItems(reply.facts, tuple(map(_item, reply.items)), tuple(reply.layouts))

    async def prepare_alike(
        self, preparation: AnyItem, sources: Sequence[MediaSource], lease: HomeLease
    ) -> list[PreparedItem]:
        """Does what MediaDesk.prepare_alike does."""
        if not sources:
            return []
        reply = await self._ask(sources, lease, alike=preparation)
        return [_item(each) for each in reply.items]

    async def _ask(
        self,
        sources: Sequence[MediaSource],
        lease: HomeLease,
        *,
        changes: bytes = b"",
        alike: AnyItem | None = None,
    ) -> MediaTold:
        asked = MediaAsked(
            [_data_of(each) for each in sources],
            changes,
            alike,
            lease.number,
            lease.deadline,
            wants_data=alike is not None,
        )
        return _media.decode(await self._channel.ask("media", encode(asked)))


_media = msgspec.msgpack.Decoder(MediaTold)


def _data_of(source: MediaSource) -> SourceData:
    file = source.load.file_id if isinstance(source.load, StoredFile) else None
    return SourceData(source.where, source.kind, source.url, source.uuid, file)


def _item(data: ItemData) -> PreparedItem:
    return PreparedItem(data.name, data.data, data.digest, data.shape, data.size)
