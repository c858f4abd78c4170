"""What the placeholders of a slot's prompt stand for: embeddings, positions, and who sees whom.

All of it is a function of the prompt's spans, so every chunk and every rank finds the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np

from penstock.protocol.media import Media, MediaSpan
from penstock.protocol.to_worker import NewSequence


class UnfitMedia(Exception):
    """The spans of a prompt don't fit it, or their items."""


class _Grid(NamedTuple):
    """The grid of a span: groups of frames, 1 for a picture; rows and columns; between the
    positions of two groups, above / below."""

    groups: int
    rows: int
    columns: int
    above: int
    below: int

    @property
    def length(self) -> int:
        """How much positions grow over the span."""
        last = (self.groups - 1) * self.above // self.below
        return max(last + 1, self.rows, self.columns)

    def positions(self, places: np.ndarray) -> np.ndarray:
        """Returns [3, places] int64, from 0 on."""
        group, row, column = np.unravel_index(places, self[:3])
        return np.array((group * self.above // self.below, row, column))


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
        self.joined = media.joined
        self._items = media.items
        self._ends = [span.end for span in media.spans]
        self._saved = [0, *accumulate(map(self._saves, media.spans))]

    def name(self, span: MediaSpan) -> str:
        """Returns the name of the item whose rows stand there."""
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
        goes on after the greatest number.
        """
        found = np.tile(np.arange(start, end), (3, 1))
        for number in range(bisect_right(self._ends, start), len(self.spans)):
            span, saved = self.spans[number], self._saved[number : number + 2]
            if span.offset >= end:
                found[:, max(0, self._text_start(number) - start) :] -= saved[0]
                return found
            low, high = max(span.offset, start), min(span.end, end)
            found[:, max(0, self._text_start(number) - start) : low - start] -= saved[0]
            grid = self._grid(span)
            if grid is not None:
                places = np.arange(low - span.offset, high - span.offset)
                inside = grid.positions(places)
                found[:, low - start : high - start] = span.offset - saved[0] + inside
            else:
                found[:, low - start : high - start] -= saved[0]
        found[:, max(0, self._text_start(len(self.spans)) - start) :] -= self._saved[-1]
        return found

    def last_seen(self, start: int, end: int) -> np.ndarray:
        """Returns [end - start] int64: the last token that each token sees, where tokens of a span
        see one another, but for a sound's. From the first joined span to the last it is the same
        for all (see `between`)."""
        found = np.arange(start, end)
        if self.joined:
            first, last = self.spans[0].offset, self.spans[-1].end
            found[max(first - start, 0) : max(last - start, 0)] = last - 1
            return found
        for span in self.overlapping(start, end):
            if self._items[span.item].kind == "audio":
                continue
            found[max(span.offset, start) - start : span.end - start] = span.end - 1
        return found

    def divided_at(self, cut: int) -> tuple[int, int] | None:
        """Returns [start, end) of the tokens that see one another, if token `cut` and the one
        before it are both among them, where tokens of a span see one another; else None."""
        if self.joined:
            first, last = self.spans[0].offset, self.spans[-1].end
            return (first, last) if first < cut < last else None
        for span in self.overlapping(cut, cut + 1):
            if span.offset < cut and self._items[span.item].kind != "audio":
                return span.offset, span.end
        return None

    def between(self, start: int, end: int) -> np.ndarray:
        """Returns [end - start] bool: which tokens are between joined spans. They see none after
        themselves, and no token before them sees them."""
        if not self.joined:
            return np.zeros(end - start, dtype=bool)
        places = np.arange(start, end)
        found = (places >= self.spans[0].offset) & (places < self.spans[-1].end)
        for span in self.overlapping(start, end):
            found[max(span.offset, start) - start : span.end - start] = False
        return found

    def _text_start(self, number: int) -> int:
        """The first token after the span before this one."""
        return self._ends[number - 1] if number else 0

    def _saves(self, span: MediaSpan) -> int:
        """Returns how much less the positions grow over a span than its tokens."""
        grid = self._grid(span)
        return 0 if grid is None else span.tokens - grid.length

    def _grid(self, span: MediaSpan) -> _Grid | None:
        """Returns the grid of an item in three dimensions, or of whole groups of its frames, in a
        span each; None: the tokens' positions just count.

        Positions grow by no more than there are tokens: rotary tables end where the sequence may.
        """
        stated = self._items[span.item].grid
        if len(stated) not in (3, 5) or min(stated[:3]) < 1:
            return None
        rows, columns = stated[1:3]
        above, below = stated[3:] or (1, 1)
        plane = rows * columns
        if prod(stated[:3]) != self._items[span.item].rows or span.first % plane:
            return None
        if span.tokens % plane or below < 1 or not 0 <= above <= below * plane:
            return None
        return _Grid(span.tokens // plane, rows, columns, above, below)


TEXT = SlotMedia(Media((), ()), 0)
"""The media of a sequence without any."""


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
