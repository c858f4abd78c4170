"""A front end's desk for media: from what a request brings to prepared items with names.

Bounds come first, then bytes, then the name by content, then the cache; only what is new goes to a
process.  What several requests bring at once is prepared once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.config.settings import MediaSettings
from penstock.errors import DeadlineExceeded, InvalidRequest
from penstock.forms.form import ImageForm
from penstock.forms.geometry import BadShape
from penstock.forms.video import VideoForm
from penstock.media.background import WHITE, background
from penstock.media.budget import MediaBudget, MediaLease
from penstock.media.changes import facts_with, with_frames
from penstock.media.fetch import Fetcher
from penstock.media.frame_settings import (
    domains,
    frame_settings,
    item_limits,
    local_folder,
    processor_settings,
)
from penstock.media.item_names import PreparedItems, item_name, preparation_digest, sha256_hex
from penstock.media.items import MediaCache, PreparedItem
from penstock.media.layout import ItemLayout, beside_others, layout
from penstock.media.pool import MediaPool, Unpreparable
from penstock.media.sources import MediaSource, SourceReader, off_the_loop
from penstock.media.wire import AnyItem, ItemBounds, Prepare, ProcessBounds
from penstock.media.words import TOO_MANY, WORDS, SourceKind
from penstock.model.media_facts import MediaFacts
from penstock.model.sound_facts import BadLength


@dataclass(slots=True)
class _Flight:
    """An item that is being prepared, for `waiters` requests."""

    task: asyncio.Task[PreparedItem]
    waiters: int = 0


@dataclass(slots=True)
class DeskCounts:
    items: int = 0
    """Items that requests brought."""
    bytes: int = 0
    """Bytes of their files."""


class MediaDesk:
    """Belongs to one event loop. Raises StartupError for settings that mean nothing."""

    def __init__(self, settings: MediaSettings, fetcher: Fetcher | None = None) -> None:
        self.limits = item_limits(settings)
        self.budget = MediaBudget(settings)
        self.cache = MediaCache(int(settings.mm_processor_cache_gb * 2**30))
        bounds = ProcessBounds(settings.media_process_mib << 20, settings.media_process_seconds)
        self.pool = MediaPool(bounds, settings.media_processes)
        self.counts = DeskCounts()
        self.max_bytes = settings.max_media_bytes
        """Most bytes of an item's file."""
        self.max_seconds = settings.max_media_seconds
        """Most seconds of a sound or a video."""
        self.max_pages = settings.max_document_pages
        self._bounds = ItemBounds(
            settings.max_media_pixels,
            settings.max_media_seconds,
            settings.max_video_frames,
            settings.max_video_pixels,
            background(settings),
        )
        self._background = () if self._bounds.background == WHITE else self._bounds.background
        self._changes = processor_settings(settings)
        self._frames = frame_settings(settings)
        allowed = domains(settings)
        fetcher = fetcher or Fetcher(allowed, settings.media_fetch_seconds)
        self._reader = SourceReader(settings.max_media_bytes, local_folder(settings), fetcher)
        self._flights: dict[tuple[str, str], _Flight] = {}

    def lease(self, tenant: str, deadline: float | None = None) -> MediaLease:
        """What holds a request's media until it is closed. deadline: the request's, on the
        monotonic clock, seconds."""
        return MediaLease(self.budget, tenant, deadline)

    def close(self) -> None:
        """Ends the processes. Idempotent."""
        self.pool.close()

    def check_count(self, facts: MediaFacts | None, sources: Sequence[MediaSource]) -> None:
        """Raises InvalidRequest where the model can't take them, or not so many."""
        counts: Counter[SourceKind] = Counter()
        for source in sources:
            word = WORDS[source.kind]
            if facts is None or source.kind not in facts.kinds:
                raise not_taken(source, facts)
            counts[source.kind] += 1
            most = self.limits[source.medium]
            if counts[source.kind] > most:
                given = sum(each.kind == source.kind for each in sources)
                raise InvalidRequest(
                    f"{source.where}: the prompt has {given} {word}s; at most {most} are accepted "
                    "(--limit-mm-per-prompt)",
                    param=source.where,
                    code=TOO_MANY[source.medium],
                )

    async def prepare(
        self,
        facts: MediaFacts | None,
        sources: Sequence[MediaSource],
        lease: MediaLease,
        changes: dict[str, Any] | None = None,
    ) -> PreparedItems | None:
        """The media, prepared; None where there are none. changes: a request's own
        mm_processor_kwargs.

        Raises InvalidRequest that names the item, TooLarge, Limited, Overloaded, RequestFailed;
        DeadlineExceeded where the lease's deadline passes meanwhile.
        """
        self.check_count(facts, sources)
        if facts is None or not sources:
            return None
        brought = {source.medium for source in sources}
        facts = facts_with(with_frames(facts, self._frames), self._changes, changes or {}, brought)
        facts = beside_others(facts, brought)
        preparations = [facts.kinds[source.medium].preparation for source in sources]
        items = await self._in_time(preparations, sources, lease)
        if any(_counts_with_arrays(each) for each in preparations):
            # With numpy, whose import alone would keep the loop.
            layouts = await asyncio.to_thread(_layouts, facts, items, sources)
        else:
            layouts = _layouts(facts, items, sources)
        return PreparedItems(facts, tuple(items), layouts)

    async def prepare_alike(
        self, preparation: AnyItem, sources: Sequence[MediaSource], lease: MediaLease
    ) -> list[PreparedItem]:
        """Items, prepared in a way that the model itself may not have. Raises as `prepare`."""
        return await self._in_time([preparation] * len(sources), sources, lease)

    async def _in_time(
        self,
        preparations: Sequence[AnyItem],
        sources: Sequence[MediaSource],
        lease: MediaLease,
    ) -> list[PreparedItem]:
        left = None if lease.deadline is None else lease.deadline - time.monotonic()
        try:
            async with asyncio.timeout(left) as timer:
                return await self._all(preparations, sources, lease)
        except TimeoutError:
            if not timer.expired():
                raise
            raise DeadlineExceeded(
                f"the request's deadline passed before its {WORDS[sources[0].kind]}s were prepared"
            ) from None

    async def _all(
        self,
        preparations: Sequence[AnyItem],
        sources: Sequence[MediaSource],
        lease: MediaLease,
    ) -> list[PreparedItem]:
        work = [
            asyncio.ensure_future(self._one(preparation, source, lease))
            for preparation, source in zip(preparations, sources, strict=True)
        ]
        try:
            return await asyncio.gather(*work)
        except BaseException:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            raise

    async def _one(
        self, preparation: AnyItem, source: MediaSource, lease: MediaLease
    ) -> PreparedItem:
        source.check_uuid()
        if source.is_name_only:
            item = self._remembered(preparation, source, lease.tenant)
            lease.take(len(item.data), source.where)
            return item
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            lease.take_file(size, source.where)
            taken += size

        data, parts = await self._reader.read_parts(source, take)
        self.counts.items += 1
        self.counts.bytes += len(data)
        name = await off_the_loop(
            len(data), item_name, preparation, source, data, parts, self._background
        )
        item = self.cache.find(lease.tenant, name) or await self._shared(
            (lease.tenant, name), self._task(preparation, source, data, parts), source
        )
        lease.give(taken)
        lease.take(len(item.data), source.where)
        if source.uuid is not None:
            self.cache.call(lease.tenant, source.uuid + preparation_digest(preparation), name)
        return item

    def _remembered(self, preparation: AnyItem, source: MediaSource, tenant: str) -> PreparedItem:
        found = self.cache.called(tenant, (source.uuid or "") + preparation_digest(preparation))
        if found is None:
            raise source.wrong(
                "is missing: nothing is kept under its uuid any more; send it again"
                if source.uuid is not None
                else "is missing"
            )
        return found

    def _task(
        self, preparation: AnyItem, source: MediaSource, data: bytes, parts: tuple[int, ...]
    ) -> Prepare:
        raw = None if source.raw is None else source.raw[1]
        return Prepare(preparation, data, self._bounds, raw, parts)

    async def _shared(
        self, key: tuple[str, str], task: Prepare, source: MediaSource
    ) -> PreparedItem:
        """Returns an item that is prepared once for all concurrent callers; the preparation stops
        when all of them have left."""
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.create_task(self._prepared(key, task)))
            self._flights[key] = flight
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        except Unpreparable as error:
            raise source.wrong(str(error)) from None
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                flight.task.cancel()

    async def _prepared(self, key: tuple[str, str], task: Prepare) -> PreparedItem:
        tenant, name = key
        answer = await self.pool.prepare(task, tenant)
        digest = await off_the_loop(len(answer.data), sha256_hex, answer.data)
        item = PreparedItem(name, answer.data, digest, answer.shape)
        self.cache.keep(tenant, item)
        return item


def not_taken(source: MediaSource, facts: MediaFacts | None) -> InvalidRequest:
    """The error of an item of a kind that the model doesn't take."""
    taken = ["text", *(f"{WORDS[kind]}s" for kind in facts.kinds)] if facts else ["text"]
    return InvalidRequest(
        f"{source.where} is a {WORDS[source.kind]}; media are not supported by this model, which "
        f"takes {' and '.join(taken)} only",
        param=source.where,
        code="unsupported_value",
    )


def _counts_with_arrays(preparation: AnyItem) -> bool:
    return isinstance(preparation, ImageForm | VideoForm) and preparation.COUNTS_WITH_ARRAYS


def _layouts(
    facts: MediaFacts, items: Sequence[PreparedItem], sources: Sequence[MediaSource]
) -> tuple[ItemLayout, ...]:
    found = []
    for item, source in zip(items, sources, strict=True):
        try:
            found.append(layout(facts, source.medium, item.shape))
        except BadShape as error:  # Its process would have said so.
            raise source.wrong(f"can't be resized: {error}") from None
        except BadLength as error:
            raise source.wrong(str(error)) from None
    return tuple(found)
