"""From a window's tokens to segments with times, and how far the window was heard to the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.model.transcription_facts import TranscriptionFacts


@dataclass(frozen=True, slots=True)
class SegmentTokens:
    """A segment of a window. start, end: timestamps, from the window's beginning."""

    start: float
    """Seconds."""
    end: float
    token_ids: list[int]
    """Its timestamps included."""


class WindowSegments(NamedTuple):
    """pieces: in order.  frames: of the window, that were heard; after them the next begins."""

    pieces: list[SegmentTokens]
    frames: int


def cut(token_ids: Sequence[int], frames: int, facts: TranscriptionFacts) -> WindowSegments:
    """A window's segments. Two timestamps in a row end one and begin the next; where a window ends
    in the middle of a segment, that one is left for the next window, which begins there.

    token_ids: what was decoded, without the end.  frames: that the window has of the recording.
    As transformers' `_retrieve_segment` has it.
    """
    is_time = [token >= facts.first_timestamp for token in token_ids]
    borders = [at for at in range(1, len(is_time)) if is_time[at - 1] and is_time[at]]
    if not borders:
        return WindowSegments([_whole(token_ids, frames, facts)], frames)
    complete = is_time[-2:] == [False, True]
    if complete:
        borders.append(len(token_ids))
    pieces = []
    for begin, end in zip([0, *borders[:-1]], borders, strict=True):
        tokens = list(token_ids[begin:end])
        pieces.append(_piece(tokens, facts))
    if complete:
        return WindowSegments(pieces, frames)  # One timestamp at the end: nothing is said after it.
    heard = (token_ids[borders[-1] - 1] - facts.first_timestamp) * facts.timestamp_frames
    return WindowSegments(pieces, min(heard, frames))


def cut_whole(token_ids: Sequence[int], frames: int, facts: TranscriptionFacts) -> WindowSegments:
    """Segments of a window that ends at a quiet place: its last segment ends with it (see cut)."""
    found = cut(token_ids, frames, facts)
    rest = list(token_ids[sum(len(piece.token_ids) for piece in found.pieces) :])
    if any(token < facts.end for token in rest):
        start = found.frames / facts.frames_per_second
        if rest[0] >= facts.first_timestamp:
            start = _seconds(rest[0], facts)
        end = max(start, frames / facts.frames_per_second)
        found.pieces.append(SegmentTokens(start, end, rest))
    return WindowSegments(found.pieces, frames)


def _whole(token_ids: Sequence[int], frames: int, facts: TranscriptionFacts) -> SegmentTokens:
    times = [token for token in token_ids if token >= facts.first_timestamp]
    end = frames / facts.frames_per_second
    if times and times[-1] != facts.first_timestamp:
        end = _seconds(times[-1], facts)
    return SegmentTokens(0.0, end, list(token_ids))


def _piece(token_ids: list[int], facts: TranscriptionFacts) -> SegmentTokens:
    return SegmentTokens(_seconds(token_ids[0], facts), _seconds(token_ids[-1], facts), token_ids)


def _seconds(timestamp: int, facts: TranscriptionFacts) -> float:
    frames = (timestamp - facts.first_timestamp) * facts.timestamp_frames
    return frames / facts.frames_per_second
