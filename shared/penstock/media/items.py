"""The prepared media of a prompt, and what a request brings of them to the engine core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.media.cache import PreparedItem
from penstock.media.layout import ItemLayout
from penstock.model.media_facts import MediaFacts
from penstock.protocol.common import Media, MediaItem, MediaSpan


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
        return PromptMedia(Media(tuple(items), tuple(places)), prepared, in_front)


def _described(one: PreparedItem, placed: ItemLayout) -> MediaItem:
    return MediaItem(
        name=one.name,
        kind=placed.kind,
        rows=placed.rows,
        size=len(one.data),
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
