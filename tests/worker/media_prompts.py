"""Prompts with media, as tokens and what stands for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.protocol.media import Media, MediaItem, MediaSpan
from tests.worker.vision.vision_cases import PLACEHOLDER


class Shown(Protocol):
    """An item in a prompt."""

    @property
    def item(self) -> MediaItem: ...

    @property
    def spans(self) -> Sequence[int]:
        """Embeddings of each run of placeholders."""


def media_prompt(
    parts: Sequence[list[int] | Shown],
    token_of: Callable[[MediaItem], int] = lambda item: PLACEHOLDER,
    *,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    joined: bool = False,
) -> tuple[list[int], Media | None]:
    """Token ids with placeholders, and what these stand for. token_of: an item's placeholder.
    before, after: tokens around each span of an item that has several. joined: whether several
    spans see one another."""
    tokens: list[int] = []
    items: list[MediaItem] = []
    spans: list[MediaSpan] = []
    for part in parts:
        if isinstance(part, list):
            tokens += part
            continue
        if part.item not in items:
            items.append(part.item)
        number, first, several = items.index(part.item), 0, len(part.spans) > 1
        for count in part.spans:
            tokens += before if several else ()
            spans.append(MediaSpan(number, len(tokens), count, first))
            tokens += [token_of(part.item)] * count
            tokens += after if several else ()
            first += count
    several = joined and len(spans) > 1
    return tokens, Media(tuple(items), tuple(spans), several) if items else None
