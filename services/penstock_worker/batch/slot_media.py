"""What the placeholders of a slot's prompt stand for: embeddings, positions, and who sees whom.

All of it is a function of the prompt's spans, so every chunk and every rank finds the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from math import prod

import numpy as np

from penstock.protocol.common import Media, MediaSpan
from penstock.protocol.to_worker import NewSequence


class UnfitMedia(Exception):
    """The spans of a prompt don't fit it, or their items."""


class SlotMedia:
    """The media of one sequence."""

    def __init__(self, media: Media, num_prompt: int) -> None:
        """Raises UnfitMedia for spans that overlap, go beyond the prompt or name no item."""
        end = 0
        for span in media.spans:
            named = 0 <= span.item < len(media.items)
            if not named or span.offset < end or span.tokens < 1 or span.end > num_prompt:
                raise UnfitMedia(f"a span of media doesn't fit the prompt of {num_prompt} tokens")
            rows = media.items[span.item].rows
            if not 0 <= span.first <= rows - span.tokens:
                raise UnfitMedia(f"a span of media has more tokens than its item's {rows} rows")
            end = span.end
        self.spans = media.spans
        self._items = media.items
        self._ends = [span.end for span in media.spans]
        self._saved = [0, *accumulate(map(self._saves, media.spans))]

    def name(self, span: MediaSpan) -> str:
        """Of the item whose rows stand there."""
        return self._items[span.item].name

    def overlapping(self, start: int, end: int) -> Iterator[MediaSpan]:
        """Yields the spans that have tokens in [start, end)."""
        for span in self.spans[bisect_right(self._ends, start) :]:
            if span.offset >= end:
                return
            yield span

    def positions(self, start: int, end: int) -> np.ndarray:
        """Returns [3, end - start] int64: time, row and column of each token (Wang et al.,
        "Qwen2-VL", 2024).

        Text has three equal numbers, each token's one more than the last one's. An item begins with
        the next number, to which each of its tokens adds its place in the item's grid; what follows
        goes on behind the longer one of the grid's sides.
        """
        found = np.tile(np.arange(start, end), (3, 1))
        for number in range(bisect_right(self._ends, start), len(self.spans)):
            span, saved = self.spans[number], self._saved[number : number + 2]
            if span.offset >= end:
                found[:, max(0, self._behind(number) - start) :] -= saved[0]
                return found
            low, high = max(span.offset, start), min(span.end, end)
            found[:, max(0, self._behind(number) - start) : low - start] -= saved[0]
            grid = self._grid(span)
            if grid:
                places = np.arange(low - span.offset, high - span.offset)
                inside = np.unravel_index(places, grid)
                found[:, low - start : high - start] = span.offset - saved[0] + np.array(inside)
            else:
                found[:, low - start : high - start] -= saved[0]
        found[:, max(0, self._behind(len(self.spans)) - start) :] -= self._saved[-1]
        return found

    def last_seen(self, start: int, end: int) -> np.ndarray:
        """Returns [end - start] int64: the last token that each token sees, where tokens of a span
        see one another."""
        found = np.arange(start, end)
        for span in self.overlapping(start, end):
            found[max(span.offset, start) - start : span.end - start] = span.end - 1
        return found

    def _behind(self, number: int) -> int:
        """The first token behind the span before this one."""
        return self._ends[number - 1] if number else 0

    def _saves(self, span: MediaSpan) -> int:
        """By how much less the positions grow over a span than its tokens."""
        grid = self._grid(span)
        return span.tokens - max(grid[1:]) if grid else 0

    def _grid(self, span: MediaSpan) -> tuple[int, ...]:
        """Of a whole item, in three dimensions; empty: its tokens' positions just count."""
        grid = self._items[span.item].grid
        if len(grid) != 3 or min(grid) < 1 or span.first or prod(grid) != span.tokens:
            return ()
        return grid


TEXT = SlotMedia(Media((), ()), 0)
"""Of a sequence without any."""


def media_of(new: NewSequence, encoder_rows: int = 0) -> tuple[SlotMedia | None, str | None]:
    """Returns a sequence's media, and why they can't be computed: that is an error of the sequence
    alone, as a family's rules about an item's grid are known to the worker only. encoder_rows: of
    an encoder-decoder model, whose prompts begin with an item of so many."""
    try:
        media = None if new.media is None else SlotMedia(new.media, new.num_prompt)
        _check_encoder_rows(media, new.num_prompt, encoder_rows)
    except UnfitMedia as error:
        return None, str(error)
    return media, None


def _check_encoder_rows(media: SlotMedia | None, num_prompt: int, rows: int) -> None:
    if not rows:
        return
    spans = () if media is None else media.spans
    if len(spans) != 1 or spans[0].offset or spans[0].tokens != rows or num_prompt <= rows:
        raise UnfitMedia(
            f"this model's prompts begin with the {rows} places of one sound, and have text behind"
        )
