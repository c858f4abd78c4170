"""A recording, window by window, as segments of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.media.item_names import PreparedItems
from penstock.media.prompt import placed
from penstock.model.transcription_facts import TranscriptionFacts
from penstock.text.tokenizer import Tokenizer
from penstock.transcription.decoding import SILENT, Decoded, WindowDecoder
from penstock.transcription.recording import Recording, quiet_windows
from penstock.transcription.wishes import Wishes, context_of, language_of, task_tokens

# From tokens and their times to words and theirs.

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Codes of languages that are written without spaces: each whole piece of text counts as a word."""
_LEADS = frozenset("\"'“¡¿([{-")
"""Belongs to the word after it."""
_TRAILS = frozenset("\"'.。,，!！?？:：”)]}、")
"""Belongs to the word before it."""
_MARKS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Word:
    """start, end: seconds."""

    text: str
    start: float
    end: float

    def within(self, low: float, high: float) -> Word:
        """The word, but no earlier and no later than these seconds."""
        high = max(low, high)
        return Word(self.text, min(max(self.start, low), high), min(max(self.end, low), high))


@dataclass(slots=True)
class _Piece:
    """Consecutive tokens, first to last."""

    text: str
    first: int
    last: int

    def take(self, other: _Piece) -> None:
        """What follows it becomes a part of it."""
        self.text += other.text
        self.last = other.last


def words_of(
    token_ids: Sequence[int],
    ends: Sequence[float],
    begin: float,
    tokenizer: Tokenizer,
    *,
    text_end: int,
    language: str,
) -> list[Word]:
    """The words of a segment, in order.

    ends: of each token, seconds; a token begins where the one before it ends.  begin: of the
    first one.  text_end: ids from there on are no text.  language: its code.
    """
    starts = [begin, *ends[:-1]]
    spoken = [at for at, token in enumerate(token_ids) if token < text_end]
    pieces = _whole_pieces([token_ids[at] for at in spoken], tokenizer)
    if language not in UNSPACED:
        pieces = _spaced(pieces)
    words = []
    for piece in _with_marks(pieces):
        text = piece.text.strip()
        if text:
            words.append(Word(text, starts[spoken[piece.first]], ends[spoken[piece.last]]))
    return words


def _whole_pieces(token_ids: list[int], tokenizer: Tokenizer) -> list[_Piece]:
    """Shortest runs of tokens that are whole characters; what is in the text as it was, though no
    token makes sense of it, is one as well."""
    everything = tokenizer.decode(token_ids)
    found: list[_Piece] = []
    first = shown = 0
    for at in range(len(token_ids)):
        text = tokenizer.decode(token_ids[first : at + 1])
        broken = text.find(_UNFINISHED)
        place = shown + broken
        if broken < 0 or place >= len(everything) or everything[place] == _UNFINISHED:
            found.append(_Piece(text, first, at))
            first, shown = at + 1, shown + len(text)
    if first < len(token_ids):
        found.append(_Piece(tokenizer.decode(token_ids[first:]), first, len(token_ids) - 1))
    return found


def _spaced(pieces: list[_Piece]) -> list[_Piece]:
    """Joins what no blank parts; a mark by itself is parted too."""
    found: list[_Piece] = []
    for piece in pieces:
        stripped = piece.text.strip()
        begins = piece.text.startswith(" ") or stripped in _MARKS or not stripped
        if begins or not found:
            found.append(piece)
        else:
            found[-1].take(piece)
    return found


def _with_marks(pieces: list[_Piece]) -> list[_Piece]:
    """Gives marks to the words that they belong to."""
    found: list[_Piece] = []
    leading: _Piece | None = None
    for piece in pieces:
        if leading is not None:
            leading.take(piece)
            found.append(leading)
            leading = None
        elif piece.text.startswith(" ") and (
            not piece.text.strip() or piece.text.strip() in _LEADS
        ):
            leading = piece
        elif found and piece.text in _TRAILS and not found[-1].text.endswith(" "):
            found[-1].take(piece)
        else:
            found.append(piece)
    return found if leading is None else [*found, leading]


MOST_WINDOWS = 8
"""For each length of a window that a recording has. A model that transcribes only a moment of each
would take thousands; from then on each window counts as transcribed to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of the text, and when it was said. start, end: seconds.  seek: where its window
    begins, frames.  The last four are its window's."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    token_ids: list[int]
    temperature: float
    average_logprob: float
    compression_ratio: float
    no_speech: float | None
    words: tuple[Word, ...] = ()
    """If they were asked for."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """A window. ends: of its tokens, seconds from its beginning, if words were asked for."""

    seek: int
    decoded: Decoded
    ends: list[float] | None


class Transcriber:
    """Transcribes one recording. Raises InvalidRequest for wishes that the model can't fulfil."""

    def __init__(
        self,
        recording: Recording,
        decoder: WindowDecoder,
        facts: TranscriptionFacts,
        tokenizer: Tokenizer,
        wishes: Wishes,
    ) -> None:
        self._recording = recording
        self._decoder = decoder
        self.facts = facts
        self._tokenizer = tokenizer
        self.wishes = wishes
        self._context = context_of(wishes, facts, tokenizer)
        self.language = language_of(wishes, facts)
        """Code of the language; None until it is detected, which comes first."""
        self._count = 0

    @property
    def seconds(self) -> float:
        """Length of the recording, seconds."""
        return self._recording.seconds

    async def segments(self) -> AsyncIterator[list[Segment]]:
        """Segments of each window; a window may have none. Raises as EngineClient.submit does, and
        RequestFailed."""
        if self.language is None:
            window = await self._recording.window(0, self._first_end())
            self.language = await self._decoder.language(placed([self.facts.start], window))
        if self.wishes.pauses:
            async for found in self._between_pauses():
                yield found
        else:
            async for found in self._one_after_another():
                yield found

    async def _one_after_another(self) -> AsyncIterator[list[Segment]]:
        total, window = self._recording.frames, self.facts.window_frames
        left = MOST_WINDOWS * (1 + total // window)
        seek = 0
        while seek < total:
            frames = min(window, total - seek)
            left -= 1
            heard = await self._heard(seek, seek + frames)
            decoded = heard.decoded
            found = cut(decoded.token_ids, frames, self.facts)
            yield self._shown(heard, found)
            goes_on = not decoded.silent and left > 0
            seek += found.frames if goes_on else frames

    def _first_end(self) -> int:
        """Returns the number of frames of the window that the language is detected in."""
        return min(self.facts.window_frames, self._recording.frames)

    async def _between_pauses(self) -> AsyncIterator[list[Segment]]:
        facts = self.facts
        mel = self._recording.mel[:, : self._recording.frames]
        windows = await asyncio.to_thread(
            quiet_windows, mel, facts.window_frames, facts.frames_per_second
        )
        for seek, end in windows:
            heard = await self._heard(seek, end)
            found = cut_whole(heard.decoded.token_ids, end - seek, facts)
            yield self._shown(heard, found)

    async def _heard(self, seek: int, end: int) -> _Heard:
        if self._recording.is_silent(seek, end):
            return _Heard(seek, SILENT, None)
        facts = self.facts
        window = await self._recording.window(seek, end)
        tokens = task_tokens(self.language or "en", self.wishes, facts)
        prompt = placed([*self._context, *tokens], window)
        start = placed([*self._context, facts.start], window)
        room = facts.max_tokens - len(self._context) - len(tokens)
        decoded = await self._decoder.decode(prompt, start, room)
        ends = None
        if self.wishes.words and not decoded.silent:
            ends = await self._ends([*self._context, *tokens], decoded, window, end - seek)
        return _Heard(seek, decoded, ends)

    async def _ends(
        self, before: list[int], decoded: Decoded, window: PreparedItems, frames: int
    ) -> list[float]:
        """When each token ends, seconds. before: tokens of the prompt.  frames: of the window's
        sound."""
        facts = self.facts
        spoken = decoded.token_ids if decoded.ended else decoded.token_ids[:-1]
        if not any(token < facts.end for token in spoken):
            return [0.0] * len(decoded.token_ids)
        rows = max(1, frames // facts.timestamp_frames)
        found = await self._decoder.ends(placed([*before, *spoken], window), rows, len(before))
        # Of a last token that had no room after it nothing is known.
        return found + found[-1:] * (len(decoded.token_ids) - len(found))

    def _shown(self, heard: _Heard, made: WindowSegments) -> list[Segment]:
        decoded, seek = heard.decoded, heard.seek
        begin = seek / self.facts.frames_per_second
        found = []
        at = 0
        for piece in [] if decoded.silent else made.pieces:
            first, at = at, at + len(piece.token_ids)
            text = self._tokenizer.decode([t for t in piece.token_ids if t < self.facts.end])
            if not text.strip():
                continue
            found.append(
                Segment(
                    id=self._count,
                    seek=seek,
                    start=begin + piece.start,
                    end=begin + piece.end,
                    text=text,
                    token_ids=piece.token_ids,
                    temperature=decoded.temperature,
                    average_logprob=decoded.quality.average_logprob,
                    compression_ratio=decoded.quality.compression_ratio,
                    no_speech=decoded.no_speech,
                    words=self._words(heard, piece, first),
                )
            )
            self._count += 1
        return found

    def _words(self, heard: _Heard, piece: SegmentTokens, first: int) -> tuple[Word, ...]:
        """Words of a segment, within its times. first: its first token's place in the window."""
        if heard.ends is None:
            return ()
        begin = heard.seek / self.facts.frames_per_second
        ends = [begin + end for end in heard.ends]
        found = words_of(
            piece.token_ids,
            ends[first : first + len(piece.token_ids)],
            ends[first - 1] if first else begin,
            self._tokenizer,
            text_end=self.facts.end,
            language=self.language or "en",
        )
        low, high = begin + piece.start, begin + piece.end
        # Attention to a segment's first word begins where its window does.
        return tuple(word.within(low, high) for word in found)


@dataclass(frozen=True, slots=True)
class SegmentTokens:
    """A segment of a window. start, end: timestamps, from the window's beginning."""

    start: float
    """Seconds."""
    end: float
    token_ids: list[int]
    """Its timestamps included."""


class WindowSegments(NamedTuple):
    """pieces: in order.  frames: of the window, that were transcribed; after them the next
    begins."""

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
