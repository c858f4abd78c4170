"""A front end's desk for media: from what a request brings to prepared pictures with names.

Bounds come first, then bytes, then the name by content, then the cache; only what is new goes to a
process.  What several requests bring at once is prepared once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.config.settings import MediaSettings
from penstock.errors import DeadlineExceeded, InvalidRequest
from penstock.media.budget import MediaBudget, MediaLease
from penstock.media.cache import MediaCache, PreparedPicture
from penstock.media.fetch import Fetcher
from penstock.media.geometry import BadShape
from penstock.media.layout import PictureLayout, layout
from penstock.media.options import (
    changed,
    domains,
    item_limits,
    local_folder,
    narrowed,
    processor_settings,
)
from penstock.media.pool import MediaPool, Unpreparable
from penstock.media.sources import LARGE, MediaSource, SourceReader
from penstock.media.wire import Prepare, ProcessBounds
from penstock.media_facts import ImagePreparation, MediaFacts
from penstock.protocol.common import Media, MediaItem, MediaSpan

VERSION = 1
"""Of this code: raise it whenever the same bytes give other pixels."""
MAX_UUID = 128
"""Characters."""


@dataclass(frozen=True, slots=True)
class PreparedItems:
    """The pictures of a prompt, in order. facts: by which they were prepared."""

    facts: MediaFacts
    pictures: tuple[PreparedPicture, ...]
    layouts: tuple[PictureLayout, ...]

    def media(self, spans: Sequence[MediaSpan]) -> PromptMedia:
        """With the places of their embeddings, by pictures; a picture that is there several times
        is one item, with several places."""
        items: list[MediaItem] = []
        numbers: dict[str, int] = {}
        for picture, one in zip(self.pictures, self.layouts, strict=True):
            if picture.name not in numbers:
                numbers[picture.name] = len(items)
                items.append(_item(picture, one))
        of_picture = [numbers[picture.name] for picture in self.pictures]
        places = [msgspec.structs.replace(span, item=of_picture[span.item]) for span in spans]
        prepared = {picture.name: picture.data for picture in self.pictures}
        return PromptMedia(Media(tuple(items), tuple(places)), prepared)


def _item(picture: PreparedPicture, one: PictureLayout) -> MediaItem:
    return MediaItem(
        name=picture.name,
        kind="image",
        rows=one.rows,
        size=len(picture.data),
        digest=picture.digest,
        grid=one.grid,
    )


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """What a request with media brings to the engine client. prepared: by name."""

    media: Media
    prepared: dict[str, bytes]

    def moved(self, by: int) -> PromptMedia:
        """With so many tokens in front of the prompt."""
        spans = tuple(msgspec.structs.replace(s, offset=s.offset + by) for s in self.media.spans)
        return PromptMedia(msgspec.structs.replace(self.media, spans=spans), self.prepared)


@dataclass(slots=True)
class _Flight:
    """A picture that is being prepared, for `waiters` requests."""

    task: asyncio.Task[PreparedPicture]
    waiters: int = 0


@dataclass(slots=True)
class DeskCounts:
    items: int = 0
    """That requests brought."""
    bytes: int = 0
    """Of their files."""


class MediaDesk:
    """Belongs to one event loop. Raises StartupError for settings that mean nothing."""

    def __init__(self, settings: MediaSettings, fetcher: Fetcher | None = None) -> None:
        self.limits = item_limits(settings)
        self.budget = MediaBudget(settings)
        self.cache = MediaCache(int(settings.mm_processor_cache_gb * 2**30))
        bounds = ProcessBounds(settings.media_process_mib << 20, settings.media_process_seconds)
        self.pool = MediaPool(bounds, settings.media_processes)
        self.counts = DeskCounts()
        self._max_pixels = settings.max_media_pixels
        self._changes = processor_settings(settings)
        allowed = domains(settings)
        fetcher = fetcher or Fetcher(allowed, settings.media_fetch_seconds)
        self._reader = SourceReader(settings.max_media_bytes, local_folder(settings), fetcher)
        self._flights: dict[tuple[str, str], _Flight] = {}

    def lease(self, tenant: str, deadline: float | None = None) -> MediaLease:
        """What holds a request's media until it is closed. deadline: the request's, on the
        monotonic clock, seconds."""
        return self.budget.lease(tenant, deadline)

    def close(self) -> None:
        """Ends the processes. Idempotent."""
        self.pool.close()

    def check_count(self, facts: MediaFacts | None, sources: Sequence[MediaSource]) -> None:
        """Raises InvalidRequest where the model can't see, or not so many."""
        if not sources:
            return
        if facts is None:
            raise InvalidRequest(
                f"{sources[0].where} is a picture; media are not supported by this model, which "
                "takes text only",
                param=sources[0].where,
                code="unsupported_value",
            )
        most = self.limits["image"]
        if len(sources) > most:
            raise InvalidRequest(
                f"{sources[most].where}: the prompt has {len(sources)} pictures; at most {most} "
                "are accepted (--limit-mm-per-prompt)",
                param=sources[most].where,
                code="too_many_images",
            )

    async def prepare(
        self,
        facts: MediaFacts | None,
        sources: Sequence[MediaSource],
        lease: MediaLease,
        changes: dict[str, Any] | None = None,
    ) -> PreparedItems | None:
        """The pictures, prepared; None where there are none. changes: a request's own
        mm_processor_kwargs.

        Raises InvalidRequest that names the item, TooLarge, Limited, Overloaded, RequestFailed;
        DeadlineExceeded where the lease's deadline passes meanwhile.
        """
        self.check_count(facts, sources)
        if facts is None or not sources:
            return None
        image = changed(facts.image, self._changes, "mm_processor_kwargs")
        image = narrowed(image, changes or {}, "mm_processor_kwargs")
        facts = msgspec.structs.replace(facts, image=image)
        pictures = await self._in_time(image, sources, lease)
        return PreparedItems(facts, tuple(pictures), _layouts(facts, pictures, sources))

    async def _in_time(
        self, image: ImagePreparation, sources: Sequence[MediaSource], lease: MediaLease
    ) -> list[PreparedPicture]:
        left = None if lease.deadline is None else lease.deadline - time.monotonic()
        try:
            async with asyncio.timeout(left) as timer:
                return await self._all(image, sources, lease)
        except TimeoutError:
            if not timer.expired():
                raise
            raise DeadlineExceeded(
                "the request's deadline passed before its pictures were prepared"
            ) from None

    async def _all(
        self, image: ImagePreparation, sources: Sequence[MediaSource], lease: MediaLease
    ) -> list[PreparedPicture]:
        work = [asyncio.ensure_future(self._one(image, each, lease)) for each in sources]
        try:
            return await asyncio.gather(*work)
        except BaseException:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            raise

    async def _one(
        self, image: ImagePreparation, source: MediaSource, lease: MediaLease
    ) -> PreparedPicture:
        _check_uuid(source)
        if source.is_name_only:
            picture = self._remembered(image, source, lease.tenant)
            lease.take(len(picture.data), source.where)
            return picture
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            lease.take_file(size, source.where)
            taken += size

        data = await self._reader.read(source, take)
        self.counts.items += 1
        self.counts.bytes += len(data)
        name = await _off_the_loop(len(data), _name, image, source, data)
        picture = self.cache.find(lease.tenant, name) or await self._shared(
            (lease.tenant, name), self._task(image, source, data), source
        )
        lease.give(taken)
        lease.take(len(picture.data), source.where)
        if source.uuid is not None:
            self.cache.call(lease.tenant, source.uuid + _digest(image), name)
        return picture

    def _remembered(
        self, image: ImagePreparation, source: MediaSource, tenant: str
    ) -> PreparedPicture:
        found = self.cache.called(tenant, (source.uuid or "") + _digest(image))
        if found is None:
            raise source.wrong(
                "is missing: nothing is kept under its uuid any more; send it again"
                if source.uuid is not None
                else "is missing"
            )
        return found

    def _task(self, image: ImagePreparation, source: MediaSource, data: bytes) -> Prepare:
        size = None if source.rgb is None else source.rgb[1:]
        return Prepare(image, data, self._max_pixels, size)

    async def _shared(
        self, key: tuple[str, str], task: Prepare, source: MediaSource
    ) -> PreparedPicture:
        """Prepared once for all who ask at the same time; stopped when all of them have left."""
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

    async def _prepared(self, key: tuple[str, str], task: Prepare) -> PreparedPicture:
        tenant, name = key
        answer = await self.pool.prepare(task, tenant)
        digest = await _off_the_loop(len(answer.data), _sha256, answer.data)
        picture = PreparedPicture(name, answer.data, digest, answer.size)
        self.cache.keep(tenant, picture)
        return picture


def _layouts(
    facts: MediaFacts, pictures: Sequence[PreparedPicture], sources: Sequence[MediaSource]
) -> tuple[PictureLayout, ...]:
    found = []
    for picture, source in zip(pictures, sources, strict=True):
        try:
            found.append(layout(facts, picture.size))
        except BadShape as error:  # Its process would have said so.
            raise source.wrong(f"can't be resized: {error}") from None
    return tuple(found)


def _check_uuid(source: MediaSource) -> None:
    if source.uuid is not None and not 1 <= len(source.uuid) <= MAX_UUID:
        raise InvalidRequest(
            f"{source.where}: uuid has {len(source.uuid)} characters; 1 to {MAX_UUID} are allowed",
            param=source.where,
        )


def _name(image: ImagePreparation, source: MediaSource, data: bytes) -> str:
    """sha256 (hex) over the item's kind, its preparation and its bytes, each with its length, so
    that no two items are framed alike."""
    kind = b"image" if source.rgb is None else b"image %d x %d" % source.rgb[1:]
    total = hashlib.sha256()
    for part in (kind, _digest(image).encode(), data):
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def _digest(image: ImagePreparation) -> str:
    return hashlib.sha256(b"%d\0" % VERSION + msgspec.json.encode(image)).hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def _off_the_loop(size: int, run: Any, *arguments: Any) -> Any:
    """`run`'s result, from a thread where it looks at many bytes."""
    if size < LARGE:
        return run(*arguments)
    return await asyncio.to_thread(run, *arguments)
