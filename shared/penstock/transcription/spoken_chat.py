"""A recording, window by window, as the answers of a model to which a sound is a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.media.prompt import MediaPrompt, placed
from penstock.model.media_facts import MediaFacts
from penstock.model.transcription_facts import SpokenChat
from penstock.request.terms import Terms
from penstock.text.tokenizer import Tokenizer
from penstock.transcription.decoding import SampledText, compression_ratio, sampled
from penstock.transcription.recording import Recording, quiet_windows
from penstock.transcription.transcriber import UNSPACED, Segment
from penstock.transcription.wishes import Wishes, language_of, told_tokens

if TYPE_CHECKING:
    from penstock.client import EngineClient


class ChatTranscriber:
    """Transcribes one recording. Windows end at quiet places; each is a segment. Raises
    InvalidRequest for wishes that the model can't fulfil."""

    def __init__(
        self,
        client: EngineClient,
        recording: Recording,
        facts: SpokenChat,
        media: MediaFacts,
        tokenizer: Tokenizer,
        wishes: Wishes,
        *,
        name: str,
        terms: Terms,
    ) -> None:
        """name, terms: of the requests to the engine."""
        self._client = client
        self._recording = recording
        self.facts = facts
        self._tokenizer = tokenizer
        self.wishes = wishes
        self.language = language_of(wishes, facts)
        """Code of the language; None until the first window is transcribed, and where that has
        none."""
        self._before = self._ids(facts.begin) + told_tokens(wishes, tokenizer)
        self._before += [*self._ids(facts.before), media.kinds["audio"].token_id]
        self._after = self._ids(facts.behind)
        if self.language is not None and facts.mark is not None:
            named = facts.naming.format(facts.languages[self.language])
            self._after += [*self._ids(named), facts.mark]
        self._name = name
        self._terms = terms
        self._count = 0

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)

    @property
    def seconds(self) -> float:
        """Length of the recording, seconds."""
        return self._recording.seconds

    async def segments(self) -> AsyncIterator[list[Segment]]:
        """The segment of each window; a window may have none. Raises as EngineClient.submit does,
        and RequestFailed."""
        facts, recording = self.facts, self._recording
        mel = recording.mel[:, : recording.frames]
        windows = await asyncio.to_thread(
            quiet_windows, mel, facts.window_frames, facts.frames_per_second
        )
        for seek, end in windows:
            if recording.is_silent(seek, end):
                continue
            answer = await self._answer(seek, end)
            segment = self._segment(answer, seek, end)
            yield [] if segment is None else [segment]

    async def _answer(self, seek: int, end: int) -> SampledText:
        window = await self._recording.window(seek, end)
        prompt: MediaPrompt = placed([*self._before, *self._after], window)
        params = self.wishes.params(
            self.wishes.temperature, self.facts.max_tokens, own_seed=self._recording.seed
        )
        return await sampled(self._client, prompt, params, name=self._name, terms=self._terms)

    def _segment(self, answer: SampledText, seek: int, end: int) -> Segment | None:
        named, ids = _parted(answer.token_ids, self.facts.mark)
        text = self._tokenizer.decode(ids).strip()
        language = self.language or self._code(named)
        if self._count == 0:
            self.language = language
        if not text:
            return None
        apart = self._count and language not in UNSPACED
        rate = self.facts.frames_per_second
        found = Segment(
            id=self._count,
            seek=seek,
            start=seek / rate,
            end=end / rate,
            text=f" {text}" if apart else text,
            token_ids=ids,
            temperature=self.wishes.temperature,
            average_logprob=sum(answer.logprobs) / max(1, len(answer.logprobs)),
            compression_ratio=compression_ratio(text),
            no_speech=None,
        )
        self._count += 1
        return found

    def _code(self, named: list[int]) -> str | None:
        """The language that stands before the mark."""
        if self.facts.mark is None:
            return None
        text = self._tokenizer.decode(named).strip()
        codes = {
            self.facts.naming.format(name): code for code, name in self.facts.languages.items()
        }
        return codes.get(text)


def _parted(token_ids: list[int], mark: int | None) -> tuple[list[int], list[int]]:
    """What stands before the first mark, and what after it; all is text where there is none."""
    if mark is None or mark not in token_ids:
        return [], token_ids
    at = token_ids.index(mark)
    return token_ids[:at], token_ids[at + 1 :]
