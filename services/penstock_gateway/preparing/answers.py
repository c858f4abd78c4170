"""The gateway's answers to what its preparers ask for."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client.computing import fingerprint_of_parts
from penstock.media.item_names import PromptMedia
from penstock.media.items import PreparedItem
from penstock.media.sources import MediaSource
from penstock.protocol.common import Grant
from penstock.request.terms import Terms
from penstock_gateway.preparing.home_media import ItemData, MediaAsked, MediaTold, SourceData
from penstock_gateway.preparing.home_models import PoolAsked, UsedModel, UseModel
from penstock_gateway.preparing.home_records import Recorded, RecordedAnswer
from penstock_gateway.preparing.wire import encode
from penstock_gateway.storage.stored_file import StoredFile

if TYPE_CHECKING:
    from penstock.media.budget import MediaLease
    from penstock_gateway.models.backend import AskedModel
    from penstock_gateway.service import Service


class Home:
    """What one request's preparer may ask for.

    tenant: whose it is.  asked: the model that it asks for, once that is known.  grant: what the
    tenant may have.
    """

    def __init__(
        self,
        service: Service,
        tenant: str,
        asked: AskedModel | None = None,
        *,
        grant: Grant | None = None,
    ) -> None:
        self._service = service
        self._tenant = tenant
        self._asked = asked
        self._grant = grant
        self.stack = AsyncExitStack()
        """Holds what is used until the request ends."""
        self.leases: dict[int, MediaLease] = {}
        """What holds media, by the preparer's own numbers."""
        self._held: asyncio.Future[str | None] | None = None
        self.items: dict[str, bytes] = {}
        """The bytes of media that were prepared, by name."""

    async def use(self, payload: bytes) -> bytes:
        """Has the model be there until the request ends."""
        used = _use.decode(payload)
        using = self._service.models.using(used.name, used.deadline)
        self._asked = asked = await self.stack.enter_async_context(using)
        place = self._service.models.backends.index(asked.backend)
        return encode(UsedModel(place, asked.name, asked.waited))

    async def pool(self, payload: bytes) -> bytes:
        given, asked = _pool.decode(payload), self._model()
        media = None
        if given.media is not None:
            media = PromptMedia(given.media, self.items, given.in_front)
        result = await asked.client.pool(
            array("i", given.prompt_token_ids).tolist(),
            given.pooling,
            name=given.name,
            terms=await self._terms(given.terms),
            media=media,
        )
        return encode(result)

    async def _terms(self, terms: Terms) -> Terms:
        """A preparer's terms, for whom the request is really. All of its parts are computed
        alike."""
        asked = self._model()
        terms = msgspec.structs.replace(
            terms, tenant=self._tenant, grant=self._grant, adapter=asked.adapter
        )
        if self._held is None:
            held = fingerprint_of_parts(asked.client, [], terms)
            self._held = asyncio.ensure_future(held)
        return msgspec.structs.replace(terms, fingerprint=await asyncio.shield(self._held))

    def _model(self) -> AskedModel:
        if self._asked is None:
            raise RuntimeError("a preparer asks of a model before it names one")
        return self._asked

    async def release(self, payload: bytes) -> bytes:
        """Lets go of a lease's media."""
        lease = self.leases.pop(int.from_bytes(payload), None)
        if lease is not None:
            lease.close()
        return b""

    async def media(self, payload: bytes) -> bytes:
        asked = _media_asked.decode(payload)
        sources = [self._source(each) for each in asked.sources]
        desk, lease = self._service.media, self._lease(asked.lease, asked.deadline)
        if asked.alike is not None:
            items = await desk.prepare_alike(asked.alike, sources, lease)
            return encode(MediaTold([_data_of(each, whole=asked.wants_data) for each in items]))
        changes = msgspec.json.decode(asked.changes) if asked.changes else None
        facts = self._model().engine.welcome.media
        prepared = await desk.prepare(facts, sources, lease, changes)
        if prepared is None:
            return encode(MediaTold([]))
        self.items |= {each.name: each.data for each in prepared.items}
        data = [_data_of(each, whole=False) for each in prepared.items]
        return encode(MediaTold(data, prepared.facts, list(prepared.layouts)))

    def _lease(self, number: int, deadline: float | None) -> MediaLease:
        lease = self.leases.get(number)
        if lease is None:
            lease = self._service.media.lease(self._tenant, deadline)
            self.leases[number] = self.stack.enter_context(lease)
        return lease

    async def records(self, payload: bytes) -> bytes:
        """Returns what a preparer asks for of the stored records, always as the request's own
        tenant."""
        from penstock_gateway.storage.chains import BrokenChain, UnfitChain

        asked = _recorded.decode(payload)
        if (asked.records, asked.method) not in _RECORDS:
            raise RuntimeError(f"a preparer asks for {asked.method} of {asked.records}")
        method = getattr(self._records(asked.records), asked.method)
        try:
            return encode(RecordedAnswer(await method(self._tenant, asked.id, **asked.options)))
        except BrokenChain as broken:
            return encode(RecordedAnswer(broken=broken.id))
        except UnfitChain as unfit:
            return encode(RecordedAnswer(unfit=str(unfit)))

    def _records(self, name: str) -> Any:
        service = self._service
        if name == "responses":
            return service.kept_responses
        return None if service.store is None else service.store.conversations

    def _source(self, data: SourceData) -> MediaSource:
        store = self._service.store
        load = None
        if data.file_id is not None and store is not None:
            load = StoredFile(store, self._tenant, data.file_id, data.where)
        return MediaSource(data.where, data.kind, url=data.url, uuid=data.uuid, load=load)


ANSWERS: dict[str, Callable[[Home, bytes], Awaitable[bytes]]] = {
    "media": Home.media,
    "pool": Home.pool,
    "records": Home.records,
    "release": Home.release,
    "use": Home.use,
}
"""What a preparer may ask for, by name."""

_RECORDS = {("responses", "find"), ("responses", "conversation"), ("conversations", "said")}


def _data_of(item: PreparedItem, *, whole: bool) -> ItemData:
    data = item.data if whole else b""
    return ItemData(item.name, item.digest, item.shape, len(item.data), data)


_media_asked = msgspec.msgpack.Decoder(MediaAsked)
_recorded = msgspec.msgpack.Decoder(Recorded)
_use = msgspec.msgpack.Decoder(UseModel)
_pool = msgspec.msgpack.Decoder(PoolAsked)
