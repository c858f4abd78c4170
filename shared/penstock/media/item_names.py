"""Names of items, by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.media.items import PreparedItem
from penstock.media.layout import ItemLayout
from penstock.media.sources import MediaSource
from penstock.media.wire import AnyItem
from penstock.model.media_facts import MediaFacts
from penstock.protocol.media import Media, MediaItem, MediaSpan

VERSION = 3
"""Version of the code that prepares: raise it whenever the same bytes give other pixels or
frames."""


def item_name(
    preparation: AnyItem,
    source: MediaSource,
    data: bytes,
    parts: tuple[int, ...],
    background: tuple[int, ...] = (),
) -> str:
    """Returns the sha256 (hex) of the item's kind, its preparation and its bytes, each with its
    length, so that different items never hash the same input. parts: bytes of each file, where it
    has several. background: shown through transparent parts; empty: white."""
    shape = () if source.raw is None else source.raw[1]
    kind = f"{source.kind} {' x '.join(map(str, shape))}".rstrip()
    if parts:
        kind += f" in parts of {parts}"
    if background:
        kind += f" on {background}"
    total = hashlib.sha256()
    for part in (kind.encode(), preparation_digest(preparation).encode(), data):
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def sha256_hex(data: bytes) -> str:
    """SHA-256 of bytes alone: the digest by which a worker checks what it is given."""
    return hashlib.sha256(data).hexdigest()


def preparation_digest(preparation: AnyItem) -> str:
    """sha256 (hex) of what is done to an item."""
    return hashlib.sha256(b"%d\0" % VERSION + msgspec.json.encode(preparation)).hexdigest()


@dataclass(frozen=True, slots=True)
class PreparedItems:
    """The media of a prompt, in order. facts: by which they were prepared."""

    facts: MediaFacts
    items: tuple[PreparedItem, ...]
    layouts: tuple[ItemLayout, ...]

    def media(self, spans: Sequence[MediaSpan], in_front: int = 0) -> PromptMedia:
        """Returns the items with the places of their embeddings; one that is there several times is
        one item, with several places."""
        items: list[MediaItem] = []
        numbers: dict[str, int] = {}
        for one, placed in zip(self.items, self.layouts, strict=True):
            if one.name not in numbers:
                numbers[one.name] = len(items)
                items.append(_described(one, placed))
        number_of = [numbers[one.name] for one in self.items]
        places = [msgspec.structs.replace(span, item=number_of[span.item]) for span in spans]
        prepared = {one.name: one.data for one in self.items}
        sees = any(self.facts.kinds[placed.kind].joined for placed in self.layouts)
        joined = sees and len(places) > 1
        return PromptMedia(Media(tuple(items), tuple(places), joined), prepared, in_front)


def _described(one: PreparedItem, placed: ItemLayout) -> MediaItem:
    return MediaItem(
        name=one.name,
        kind=placed.kind,
        rows=placed.rows,
        size=one.size or len(one.data),
        digest=one.digest,
        grid=placed.grid,
    )


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """What a request with media brings to the engine client. prepared: by name.  in_front: places
    before the prompt that was given, of an encoder-decoder model's item."""

    media: Media
    prepared: dict[str, bytes]
    in_front: int = 0

    def moved(self, by: int) -> PromptMedia:
        """Returns the same media with so many more tokens in front of the prompt."""
        spans = tuple(msgspec.structs.replace(s, offset=s.offset + by) for s in self.media.spans)
        moved = msgspec.structs.replace(self.media, spans=spans)
        return PromptMedia(moved, self.prepared, self.in_front)
