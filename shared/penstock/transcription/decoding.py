"""Decodes one window of a recording, from its prompt to tokens that are believed."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import DeadlineExceeded, EngineUnavailable, InvalidRequest, RequestFailed
from penstock.media.prompt import MediaPrompt
from penstock.model.transcription_facts import TranscriptionFacts
from penstock.protocol.common import Pooling, SpeechRules, TimestampRules
from penstock.request.sampling_params import SamplingParams
from penstock.request.terms import Terms
from penstock.text.tokenizer import Tokenizer
from penstock.transcription.wishes import Wishes

if TYPE_CHECKING:
    from penstock.client import EngineClient, Generation, SequenceDelta


# Whether what a window was decoded to is to be believed (Radford et al. 2022, section 4.5).

MAX_COMPRESSION_RATIO = 2.4
"""A text that is compressed better than that repeats itself."""
MIN_AVERAGE_LOGPROB = -1.0
"""Less probable tokens were guessed."""
NO_SPEECH = 0.6
"""Probability of silence above which tokens of a low probability are taken for guesses: nothing was
said."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How far a window's text is to be believed. average_logprob: of its tokens, the end included
    and timestamps left out; of the raw distribution."""

    compression_ratio: float
    average_logprob: float

    @property
    def is_repetitive(self) -> bool:
        return self.compression_ratio > MAX_COMPRESSION_RATIO

    @property
    def is_guessed(self) -> bool:
        return self.average_logprob < MIN_AVERAGE_LOGPROB


def compression_ratio(text: str) -> float:
    """Bytes of the text to those of its compressed form; 0 for no text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


@dataclass(frozen=True, slots=True)
class Decoded:
    """A window's tokens, without the end. no_speech: probability of silence; None: not requested.
    silent: nothing was said.  ended: by itself, and not for want of room."""

    token_ids: list[int]
    quality: Quality
    temperature: float
    no_speech: float | None
    silent: bool = False
    ended: bool = True


SILENT = Decoded([], Quality(0.0, 0.0), 0.0, None, silent=True)
"""The result of a window that needn't be decoded."""


@dataclass(frozen=True, slots=True)
class SampledText:
    """An answer's token ids, the end included, and their log-probabilities."""

    token_ids: list[int]
    logprobs: list[float]


class WindowDecoder:
    """Asks the engine for the windows of one recording. seed: the recording's own.  name, terms: of
    the request."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        facts: TranscriptionFacts,
        wishes: Wishes,
        seed: int,
        *,
        name: str,
        terms: Terms,
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._facts = facts
        self._wishes = wishes
        self._seed = seed
        self._name = name
        self._terms = terms
        self._rules = rules_of(facts)

    async def language(self, start: MediaPrompt) -> str:
        """The likeliest one's code. start: a prompt that ends in <|startoftranscript|>."""
        codes = {token: code for code, token in self._facts.languages.items()}
        sampled = await self._one_of(start, sorted(codes))
        return codes[sampled.token_ids[0]]

    async def decode(self, prompt: MediaPrompt, start: MediaPrompt, room: int) -> Decoded:
        """The window's text, at the first temperature at which it is believed, or the last.

        start: the part of the prompt up to <|startoftranscript|>.  room: tokens that it may have.
        """
        silence: float | None = None
        if self._wishes.silence:
            silence = await self._silence(start)
        for temperature in self._wishes.temperatures:
            params = self._wishes.params(temperature, room, own_seed=self._seed)
            sampled = await self._sample(prompt, params, self._rules)
            found = self._judged(sampled)
            if found.is_guessed and silence is None:
                silence = await self._silence(start)
            if found.is_guessed and (silence or 0.0) > NO_SPEECH:
                return Decoded([], found, temperature, silence, silent=True)
            if not (found.is_guessed or found.is_repetitive):
                break
        ids = sampled.token_ids
        ended = ids[-1:] == [self._facts.end]
        return Decoded(ids[:-1] if ended else ids, found, temperature, silence, ended=ended)

    async def ends(self, whole: MediaPrompt, rows: int, skipped: int) -> list[float]:
        """When each token of a text ends that was decoded, seconds of its window.

        whole: prompt and text, without the end.  rows: of the encoder, that hold sound.  skipped:
        tokens of the prompt.
        """
        asked = Pooling("align", rows=rows, skipped=skipped)
        found = await self._client.pool(
            whole.prompt_token_ids, asked, name=self._name, terms=self._terms, media=whole.media
        )
        facts = self._facts
        seconds = facts.timestamp_frames / facts.frames_per_second
        return [row * seconds for row in found.values()]

    async def _silence(self, start: MediaPrompt) -> float:
        """How probable it is that nothing is said."""
        token = self._facts.no_speech
        if token is None:
            return 0.0
        # Log-probabilities are those of the raw distribution, also of a token that is the only one
        # allowed.
        return math.exp((await self._one_of(start, [token])).logprobs[0])

    def _judged(self, sampled: SampledText) -> Quality:
        """Log-probabilities are those of the raw distribution. A timestamp's says little there: it
        is shared with its neighbours, and with what the rules forbid in its place."""
        ids, facts = sampled.token_ids, self._facts
        text = self._tokenizer.decode([token for token in ids if token < facts.end])
        counted = [
            logprob
            for token, logprob in zip(ids, sampled.logprobs, strict=True)
            if token < facts.first_timestamp
        ]
        average = sum(counted) / max(1, len(counted))
        return Quality(compression_ratio(text.strip()), average)

    async def _one_of(self, start: MediaPrompt, allowed: list[int]) -> SampledText:
        params = SamplingParams(
            temperature=0.0, max_tokens=1, allowed_token_ids=allowed, logprobs=0, ignore_eos=True
        )
        return await self._sample(start, params, None)

    async def _sample(
        self, prompt: MediaPrompt, params: SamplingParams, rules: SpeechRules | None
    ) -> SampledText:
        return await sampled(
            self._client, prompt, params, rules, name=self._name, terms=self._terms
        )


async def sampled(
    client: EngineClient,
    prompt: MediaPrompt,
    params: SamplingParams,
    rules: SpeechRules | None = None,
    *,
    name: str,
    terms: Terms,
) -> SampledText:
    """The engine's answer to one prompt. Raises as EngineClient.submit does, and RequestFailed."""
    generation = await client.submit(
        prompt.prompt_token_ids,
        params,
        name=name,
        terms=terms,
        media=prompt.media,
        speech=rules,
    )
    try:
        return await _gathered(generation)
    finally:
        generation.abort()


def rules_of(facts: TranscriptionFacts) -> SpeechRules:
    """Rules for a text with timestamps."""
    times = TimestampRules(facts.first_timestamp, facts.end, facts.no_timestamps, facts.max_initial)
    return SpeechRules(facts.suppressed, facts.suppressed_first, times)


async def _gathered(generation: Generation) -> SampledText:
    found = SampledText([], [])
    async for deltas in generation:
        for delta in deltas:
            _check(delta)
            found.token_ids.extend(delta.token_ids)
            found.logprobs.extend(each.logprob for each in delta.logprobs or ())
    return found


def _check(delta: SequenceDelta) -> None:
    """Raises what a sequence ended in, if it did not end by itself."""
    match delta.finish_reason:
        case "error":
            error = delta.error or "the request failed in the engine"
            if delta.error_code is not None:
                raise InvalidRequest(error, param="file", code=delta.error_code)
            raise RequestFailed(error)
        case "timeout":
            raise DeadlineExceeded("the request's deadline passed before its answer was complete")
        case "abort":
            raise EngineUnavailable("the request was aborted by the server")
