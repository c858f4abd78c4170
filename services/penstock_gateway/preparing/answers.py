"""The gateway's answers to what its preparers ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.media.items import PreparedItem
from penstock.media.sources import MediaSource
from penstock_gateway.chat.documents import StoredFile
from penstock_gateway.preparing.home import (
    ItemData,
    MediaAsked,
    MediaTold,
    Recorded,
    RecordedAnswer,
    SourceData,
)
from penstock_gateway.preparing.wire import encode

if TYPE_CHECKING:
    from penstock.media.desk import MediaLease
    from penstock.model.media_facts import MediaFacts
    from penstock_gateway.service import Service


class Home:
    """What one request's preparer may ask for. lease: holds the request's media.  facts: of the
    model's media."""

    def __init__(self, service: Service, lease: MediaLease, facts: MediaFacts | None) -> None:
        self._service = service
        self._lease = lease
        self._facts = facts
        self.items: dict[str, bytes] = {}
        """The bytes of media that were prepared, by name."""

    async def media(self, payload: bytes) -> bytes:
        asked = _media_asked.decode(payload)
        sources = [self._source(each) for each in asked.sources]
        desk, lease = self._service.media, self._lease
        if asked.alike is not None:
            items = await desk.prepare_alike(asked.alike, sources, lease)
            return encode(MediaTold([_data_of(each, whole=asked.wants_data) for each in items]))
        changes = msgspec.json.decode(asked.changes) if asked.changes else None
        prepared = await desk.prepare(self._facts, sources, lease, changes)
        if prepared is None:
            return encode(MediaTold([]))
        self.items |= {each.name: each.data for each in prepared.items}
        told = [_data_of(each, whole=False) for each in prepared.items]
        return encode(MediaTold(told, prepared.facts, list(prepared.layouts)))

    async def records(self, payload: bytes) -> bytes:
        """Of the request's own tenant, whatever is asked."""
        from penstock_gateway.storage.response_records import BrokenChain, UnfitChain

        asked = _recorded.decode(payload)
        if (asked.records, asked.method) not in _RECORDS:
            raise RuntimeError(f"a preparer asks for {asked.method} of {asked.records}")
        records = getattr(self._service.store, asked.records)
        method = getattr(records, asked.method)
        try:
            return encode(
                RecordedAnswer(await method(self._lease.tenant, asked.id, **asked.options))
            )
        except BrokenChain as broken:
            return encode(RecordedAnswer(broken=broken.id))
        except UnfitChain as unfit:
            return encode(RecordedAnswer(unfit=str(unfit)))

    def _source(self, data: SourceData) -> MediaSource:
        store = self._service.store
        load = None
        if data.file_id is not None and store is not None:
            load = StoredFile(store, self._lease.tenant, data.file_id, data.where)
        return MediaSource(data.where, data.kind, url=data.url, uuid=data.uuid, load=load)


ANSWERS: dict[str, Callable[[Home, bytes], Awaitable[bytes]]] = {
    "media": Home.media,
    "records": Home.records,
}
"""What a preparer may ask for, by name."""

_RECORDS = {("responses", "find"), ("responses", "conversation"), ("conversations", "said")}


def _data_of(item: PreparedItem, *, whole: bool) -> ItemData:
    data = item.data if whole else b""
    return ItemData(item.name, item.digest, item.shape, len(item.data), data)


_media_asked = msgspec.msgpack.Decoder(MediaAsked)
_recorded = msgspec.msgpack.Decoder(Recorded)
