"""A recording, window by window, as segments of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from penstock.media.prompt import placed
from penstock.text.tokenizer import Tokenizer
from penstock.transcription import quiet
from penstock.transcription.decoding import Decoded, WindowDecoder
from penstock.transcription.recording import Recording
from penstock.transcription.segments import WindowSegments, cut, cut_whole
from penstock.transcription.wishes import Wishes, context_of, language_of, task_tokens
from penstock.transcription_facts import TranscriptionFacts

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


class Transcriber:
    """Of one recording. Raises InvalidRequest for wishes that the model can't fulfil."""

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
        """Of the recording."""
        return self._recording.seconds

    async def segments(self) -> AsyncIterator[list[Segment]]:
        """Those of each window; a window may have none. Raises as EngineClient.submit does, and
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
            decoded = await self._decoded(seek, seek + frames)
            found = cut(decoded.token_ids, frames, self.facts)
            yield self._shown(seek, decoded, found)
            heard = not decoded.silent and left > 0
            seek += found.frames if heard else frames

    def _first_end(self) -> int:
        """Of the window that the language is heard in, frames."""
        return min(self.facts.window_frames, self._recording.frames)

    async def _between_pauses(self) -> AsyncIterator[list[Segment]]:
        facts = self.facts
        mel = self._recording.mel[:, : self._recording.frames]
        windows = await asyncio.to_thread(
            quiet.windows, mel, facts.window_frames, facts.frames_per_second
        )
        for seek, end in windows:
            decoded = await self._decoded(seek, end)
            found = cut_whole(decoded.token_ids, end - seek, facts)
            yield self._shown(seek, decoded, found)

    async def _decoded(self, seek: int, end: int) -> Decoded:
        facts = self.facts
        window = await self._recording.window(seek, end)
        tokens = task_tokens(self.language or "en", self.wishes, facts)
        prompt = placed([*self._context, *tokens], window)
        start = placed([*self._context, facts.start], window)
        room = facts.max_tokens - len(self._context) - len(tokens)
        return await self._decoder.decode(prompt, start, room)

    def _shown(self, seek: int, decoded: Decoded, made: WindowSegments) -> list[Segment]:
        begin = seek / self.facts.frames_per_second
        found = []
        for piece in [] if decoded.silent else made.pieces:
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
                )
            )
            self._count += 1
        return found
