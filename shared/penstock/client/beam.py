"""Beam search: a loop of small requests, one for each beam and step.

The rules are those of transformers' beam search with early_stopping=False.  Of all beams'
continuations the best are taken, twice as many as there are beams (more where there are several
ids that end a text).  A continuation that ends its text becomes a finished hypothesis where it is
among the first beam_width of them; the best of the others are the next beams.  The search is over
when the best beam's score, at the length that it has, is no better than the worst of beam_width
finished hypotheses.  At max_tokens every beam is finished.

Each request finds its prefix in the KV cache, and is part of one that was accepted: it is not
refused for lack of room.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field

from penstock.client.beam_params import BeamSearchParams
from penstock.client.engine_client import NO_TERMS, EngineClient
from penstock.client.generation import SequenceDelta
from penstock.client.hypothesis import Hypothesis
from penstock.client.model_text import ModelText
from penstock.client.sequence_text import SequenceText
from penstock.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    InvalidRequest,
    PenstockError,
    RequestFailed,
)
from penstock.protocol.common import FinishReason, TokenLogprobs
from penstock.protocol.to_frontend import Welcome
from penstock.sampling_params import SamplingParams
from penstock.terms import Terms


@dataclass(frozen=True, slots=True)
class _Beam:
    """tokens: emitted.  total: their log-probability.  steps: what was reported of each."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    steps: tuple[TokenLogprobs, ...] = ()

    def grown(self, total: float, entry: TokenLogprobs, place: int, reported: int) -> _Beam:
        """With the entry's token at `place`, of whose alternatives some are reported."""
        ids, logprobs = entry.top_ids[:reported], entry.top_logprobs[:reported]
        step = TokenLogprobs(entry.top_logprobs[place], ids, logprobs)
        return _Beam((*self.tokens, entry.top_ids[place]), total, (*self.steps, step))

    def score(self, length_penalty: float) -> float:
        """Comparable between lengths."""
        return self.total / len(self.tokens) ** length_penalty


@dataclass
class _Finished:
    """The best hypotheses, at most `most` of them. Of equals, the earlier found is better."""

    most: int
    length_penalty: float
    beams: list[tuple[float, _Beam, FinishReason]] = field(default_factory=list)

    def add(self, beam: _Beam, reason: FinishReason) -> None:
        self.beams.append((beam.score(self.length_penalty), beam, reason))
        self.beams.sort(key=lambda each: -each[0])
        del self.beams[self.most :]

    def beats(self, best: _Beam) -> bool:
        """Whether none that grows from `best`, the best beam, is expected to be among them."""
        full = len(self.beams) == self.most
        return full and best.score(self.length_penalty) <= self.beams[-1][0]


async def beam_search(
    client: EngineClient,
    prompt_token_ids: list[int],
    params: BeamSearchParams,
    *,
    name: str,
    terms: Terms = NO_TERMS,
) -> list[Hypothesis]:
    """The beam_width best hypotheses, best first; fewer only where no more were to be found.

    One whose deadline passes ends with the beams that there are, as "timeout".  Cancelling it
    aborts what runs.  Raises what EngineClient.submit and a Generation raise.
    """
    welcome, text = client.welcome, client.text
    if welcome is None or text is None:
        raise EngineUnavailable("there is no session with an engine core at the moment")
    search = _Search(client, prompt_token_ids, params, welcome, name, terms)
    finished = await search.run()
    return [
        _hypothesis(score, beam, reason, params, search.ends, text)
        for score, beam, reason in finished.beams
    ]


class _Search:
    def __init__(
        self,
        client: EngineClient,
        prompt: list[int],
        params: BeamSearchParams,
        welcome: Welcome,
        name: str,
        terms: Terms,
    ) -> None:
        self._client = client
        self._prompt = prompt
        self._params = params
        self._name = name
        self._terms = terms
        eos = () if params.ignore_eos else welcome.generation.eos_token_ids
        self.ends = frozenset((*eos, *(params.stop_token_ids or ())))
        room = welcome.limits.max_model_len - len(prompt)
        self._steps = min(params.max_tokens, room)
        _check_stop_ids(params.stop_token_ids or [], welcome.limits.vocab_size)
        self._vocab = welcome.limits.vocab_size
        # Each beam gives at most beam_width beams, and its ends.
        self._candidates = min(params.beam_width + len(self.ends), self._vocab, MAX_CANDIDATES)
        self._requests = 0

    async def run(self) -> _Finished:
        params = self._params
        finished = _Finished(params.beam_width, params.length_penalty)
        beams = [_Beam()]
        for step in range(1, self._steps + 1):
            outcomes = await self._ask(beams)
            ended = next((one for one in outcomes if one.finish_reason != "length"), None)
            if ended is not None:
                self._give_up(beams, ended, finished)
                break
            best = self._continuations(beams, outcomes)
            last = step == self._steps
            for beam in best[: params.beam_width]:
                if beam.tokens[-1] in self.ends:
                    finished.add(beam, "stop")
                elif last:
                    finished.add(beam, "length")
            beams = [beam for beam in best if beam.tokens[-1] not in self.ends]
            beams = beams[: params.beam_width]
            if last or not beams or finished.beats(beams[0]):
                break
        return finished

    def _give_up(self, beams: list[_Beam], ended: SequenceDelta, finished: _Finished) -> None:
        """A request ended before its time: so do all beams."""
        if ended.finish_reason == "error":
            raise RequestFailed(ended.error or "a step of the beam search failed")
        for beam in beams:
            if beam.tokens:
                finished.add(beam, ended.finish_reason or "abort")
        if not finished.beams:
            raise DeadlineExceeded("the deadline passed before there was a first token")

    def _continuations(self, beams: list[_Beam], outcomes: list[SequenceDelta]) -> list[_Beam]:
        """The best, best first."""
        entries = [(one.logprobs or [_NOTHING])[0] for one in outcomes]
        totals = (
            (beam.total + logprob, number, place)
            for number, (beam, entry) in enumerate(zip(beams, entries, strict=True))
            for place, logprob in enumerate(entry.top_logprobs)
        )
        kept = max(2, 1 + len(self.ends)) * self._params.beam_width
        best = heapq.nlargest(kept, totals, key=lambda each: each[0])
        reported = self._params.logprobs or 0
        return [
            beams[number].grown(total, entries[number], place, reported)
            for total, number, place in best
        ]

    async def _ask(self, beams: list[_Beam]) -> list[SequenceDelta]:
        """What the engine says of each beam's next token."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask_one(beam)) for beam in beams]
        except* PenstockError as failures:
            # The others have been cancelled; the caller gets the first error as it is.
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask_one(self, beam: _Beam) -> SequenceDelta:
        self._requests += 1
        try:
            generation = await self._client.submit(
                [*self._prompt, *beam.tokens],
                _ONE_TOKEN,
                name=f"{self._name}-{self._requests}",
                terms=self._terms,
                inherits=bool(beam.tokens),
                candidates=self._candidates,
                affinity=len(self._prompt),
            )
        except DeadlineExceeded:
            if not beam.tokens:
                raise
            return SequenceDelta(index=0, finish_reason="timeout")
        whole = SequenceDelta(index=0)
        try:
            async for deltas in generation:
                for delta in deltas:
                    whole.absorb(delta)
        finally:
            generation.abort()
        return whole


def _check_stop_ids(ids: list[int], vocabulary: int) -> None:
    """The engine isn't told of them: they end beams here."""
    for token in ids:
        if token >= vocabulary:
            raise InvalidRequest(
                f"stop_token_ids: token id {token} is not in the vocabulary, 0 to {vocabulary - 1}",
                param="stop_token_ids",
            )


def _hypothesis(
    score: float,
    beam: _Beam,
    reason: FinishReason,
    params: BeamSearchParams,
    ends: frozenset[int],
    text: ModelText,
) -> Hypothesis:
    tokens = list(beam.tokens)
    ended = reason == "stop"
    hidden = ended and not params.include_stop_str_in_output
    last = tokens[-1] if tokens else None
    stops = frozenset(params.stop_token_ids or ())
    return Hypothesis(
        token_ids=tokens,
        text=_text(tokens[:-1] if hidden else tokens, params, text),
        cumulative_logprob=beam.total,
        score=score,
        logprobs=None if params.logprobs is None else list(beam.steps),
        finish_reason=reason,
        stop_reason=last if ended and last in stops else None,
    )


def _text(tokens: list[int], params: BeamSearchParams, text: ModelText) -> str:
    whole = SequenceText(
        text.tokenizer, skip_special_tokens=params.skip_special_tokens, stop=(), min_tokens=0
    )
    return whole.push(tokens).text + whole.finish().text


MAX_CANDIDATES = 256
"""Log-probabilities of a token that an engine core gives."""

_NOTHING = TokenLogprobs(0.0, [], [])
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, seed=0, ignore_eos=True)
