"""Positions and places of a prompt's items, against a slow model."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from penstock.protocol.media import Media, MediaItem, MediaSpan
from penstock_worker.batch.slot_media import TEXT, SlotMedia, UnfitMedia


def item(rows: int, *grid: int) -> MediaItem:
    return MediaItem(f"{rows:064x}", "image", rows, 10, "0" * 64, grid)


def random_media(choose: random.Random) -> tuple[Media, int]:
    items, spans, at = [], [], choose.randrange(4)
    for number in range(choose.randrange(1, 6)):
        grid = tuple(choose.randrange(1, 5) for _ in range(3))
        plane = grid[1] * grid[2]
        rows = grid[0] * plane
        below = choose.randrange(1, 5)
        step = () if choose.random() < 0.5 else (choose.randrange(below * plane + 1), below)
        items.append(item(rows, *grid, *step) if choose.random() < 0.8 else item(rows))
        if choose.random() < 0.3:  # A span for each group of a video's frames.
            for group in range(grid[0]):
                spans.append(MediaSpan(number, at, plane, group * plane))
                at += plane + choose.randrange(3)
        else:
            spans.append(MediaSpan(number, at, rows))
            at += rows + choose.randrange(4)
    return Media(tuple(items), tuple(spans)), at + choose.randrange(4) + 1


def slow_positions(media: Media, length: int) -> np.ndarray:
    """Token by token."""
    found, following = [], 0
    begins = {span.offset: span for span in media.spans}
    at = 0
    while at < length:
        span = begins.get(at)
        grid = () if span is None else media.items[span.item].grid
        if span is None or not grid:
            found.append((following, following, following))
            following, at = following + 1, at + 1
            continue
        step = Fraction(*grid[3:]) if grid[3:] else Fraction(1)
        inside = [
            (math.floor(time * step), row, column)
            for time in range(span.tokens // (grid[1] * grid[2]))
            for row in range(grid[1])
            for column in range(grid[2])
        ]
        found += [tuple(following + place for place in places) for places in inside]
        following, at = max(max(places) for places in found) + 1, span.end
    return np.array(found).T


def test_positions_are_those_of_a_slow_count() -> None:
    choose = random.Random(3)
    for _ in range(200):
        media, length = random_media(choose)
        slot, true = SlotMedia(media, length), slow_positions(media, length)
        start = choose.randrange(length)
        end = choose.randrange(start + 1, length + 1)
        assert np.array_equal(slot.positions(0, length), true)
        assert np.array_equal(slot.positions(start, end), true[:, start:end])
        assert true.max() <= length, "no position is beyond the rotary tables"


def test_what_is_seen_is_the_rest_of_a_span() -> None:
    media = Media((item(4), item(6)), (MediaSpan(0, 2, 4), MediaSpan(1, 8, 3, 3)))
    slot = SlotMedia(media, 14)
    whole = [0, 1, 5, 5, 5, 5, 6, 7, 10, 10, 10, 11, 12, 13]
    assert slot.last_seen(0, 14).tolist() == whole
    for start in range(14):
        for end in range(start + 1, 15):
            assert slot.last_seen(start, end).tolist() == whole[start:end]
            spans = [span for span in media.spans if span.end > start and span.offset < end]
            assert list(slot.overlapping(start, end)) == spans


def test_joined_spans_see_one_another_but_not_what_stands_between_them() -> None:
    media = Media((item(4), item(6)), (MediaSpan(0, 2, 4), MediaSpan(1, 8, 3, 3)), joined=True)
    slot, shown = SlotMedia(media, 14), [*range(2, 6), *range(8, 11)]
    for start in range(14):
        for end in range(start + 1, 15):
            last, between = slot.last_seen(start, end), slot.between(start, end)
            for query in range(start, end):
                seen = [
                    key <= last[query - start] and not (between[query - start] or key in (6, 7))
                    for key in range(query + 1, 14)
                ]
                both = [query in shown and key in shown for key in range(query + 1, 14)]
                assert seen == both


def test_a_sounds_tokens_see_none_behind_them() -> None:
    heard = msgspec.structs.replace(item(4), kind="audio")
    slot = SlotMedia(Media((heard, item(3)), (MediaSpan(0, 2, 4), MediaSpan(1, 7, 3))), 12)
    assert slot.last_seen(0, 12).tolist() == [*range(7), 9, 9, 9, 10, 11]


def test_a_wrong_grid_counts_positions_as_text() -> None:
    wrong = ((2, 3), (1, 2, 2), (0, 3, 2), (-1, -2, 3), (10**9, 1, 1))
    too_far = ((3, 1, 2, 1), (3, 1, 2, 3, 1), (3, 1, 2, 1, 0), (3, 1, 2, -1, 1))
    for grid in wrong + too_far:
        slot = SlotMedia(Media((item(6, *grid),), (MediaSpan(0, 1, 6),)), 9)
        assert np.array_equal(slot.positions(0, 9), TEXT.positions(0, 9))


@pytest.mark.parametrize(
    "span",
    [
        MediaSpan(1, 0, 2),
        MediaSpan(-1, 0, 2),
        MediaSpan(0, -1, 2),
        MediaSpan(0, 0, 0),
        MediaSpan(0, 8, 2),
        MediaSpan(0, 0, 5),
        MediaSpan(0, 0, 4, 1),
        MediaSpan(0, 0, 2, -1),
    ],
)
def test_spans_that_dont_fit_are_refused(span: MediaSpan) -> None:
    with pytest.raises(UnfitMedia):
        SlotMedia(Media((item(4),), (span,)), 9)


def test_spans_that_overlap_are_refused() -> None:
    with pytest.raises(UnfitMedia):
        SlotMedia(Media((item(4),), (MediaSpan(0, 0, 3), MediaSpan(0, 2, 3))), 9)
