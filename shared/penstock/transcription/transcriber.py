"""A recording, window by window, as segments of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from penstock.media.items import PreparedItems
from penstock.media.prompt import placed
from penstock.model.transcription_facts import TranscriptionFacts
from penstock.text.tokenizer import Tokenizer
from penstock.transcription import quiet
from penstock.transcription.decoding import Decoded, WindowDecoder
from penstock.transcription.recording import Recording
from penstock.transcription.segments import SegmentTokens, WindowSegments, cut, cut_whole
from penstock.transcription.wishes import Wishes, context_of, language_of, task_tokens
from penstock.transcription.words import Word, words_of

MOST_WINDOWS = 8
"""For each length of a window that a recording has. A model that hears no further than a moment in
each would take thousands; from then on each window counts as heard to its end."""


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
        """Its code; None until it is detected, which comes first."""
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
        """Frames of the window that the language is heard in."""
        return min(self.facts.window_frames, self._recording.frames)

    async def _between_pauses(self) -> AsyncIterator[list[Segment]]:
        facts = self.facts
        mel = self._recording.mel[:, : self._recording.frames]
        windows = await asyncio.to_thread(
            quiet.windows, mel, facts.window_frames, facts.frames_per_second
        )
        for seek, end in windows:
            heard = await self._heard(seek, end)
            found = cut_whole(heard.decoded.token_ids, end - seek, facts)
            yield self._shown(heard, found)

    async def _heard(self, seek: int, end: int) -> _Heard:
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
