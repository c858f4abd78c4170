"""Beam search: one request, each of whose steps gives every beam its most likely next tokens.

The rules are those of transformers' beam search with early_stopping=False.  Of all beams'
continuations the best are taken, twice as many as there are beams (more where there are several
ids that end a text).  A continuation that ends its text becomes a finished hypothesis where it is
among the first beam_width of them; the best of the others are the next beams.  The search is over
when the best beam's score, at the length that it has, is no better than the worst of beam_width
finished hypotheses.  At max_tokens every beam is finished.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field

from penstock.client.beam_params import BeamSearchParams, Hypothesis
from penstock.client.beam_request import NextStep, Outcome
from penstock.client.emitted import SequenceText
from penstock.client.engine_client import NO_TERMS, EngineClient
from penstock.client.request_bounds import max_output
from penstock.client.served_model import ModelText
from penstock.errors import DeadlineExceeded, EngineUnavailable, InvalidRequest, RequestFailed
from penstock.protocol.common import FinishReason, TokenLogprobs
from penstock.protocol.to_frontend import Welcome
from penstock.request.terms import Terms


@dataclass(frozen=True, slots=True)
class _Record:
    """The report of a beam's last token, and a link to those before it. Beams that were one share
    what they have in common."""

    step: TokenLogprobs
    before: _Record | None


@dataclass(frozen=True, slots=True)
class _Beam:
    """tokens: emitted.  total: their log-probability.  record: None where nothing is reported."""

    tokens: list[int] = field(default_factory=list)
    total: float = 0.0
    record: _Record | None = None

    def grown(self, total: float, entry: TokenLogprobs, place: int, reported: int | None) -> _Beam:
        """Returns the beam with the entry's token at `place` added. reported: how many of its
        alternatives are reported."""
        record = None
        if reported is not None:
            ids, logprobs = entry.top_ids[:reported], entry.top_logprobs[:reported]
            step = TokenLogprobs(entry.top_logprobs[place], ids, logprobs)
            record = _Record(step, self.record)
        return _Beam([*self.tokens, entry.top_ids[place]], total, record)

    def steps(self) -> list[TokenLogprobs]:
        """Returns the report of each token, in order."""
        steps, record = [], self.record
        while record is not None:
            steps.append(record.step)
            record = record.before
        steps.reverse()
        return steps

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
    search = _Search(len(prompt_token_ids), params, welcome)
    request = await client.search(
        prompt_token_ids,
        search.follow,
        beams=params.beam_width,
        candidates=search.candidates,
        name=name,
        terms=terms,
    )
    try:
        reason = await asyncio.shield(request.done)
    finally:
        request.abort()
    return [
        _hypothesis(score, beam, why, params, search.ends, text)
        for score, beam, why in search.results(reason)
    ]


class _Search:
    """candidates: tokens to report at each step.  ends: ids that end a beam."""

    def __init__(self, prompt_tokens: int, params: BeamSearchParams, welcome: Welcome) -> None:
        self._params = params
        eos = () if params.ignore_eos else welcome.generation.eos_token_ids
        self.ends = frozenset((*eos, *(params.stop_token_ids or ())))
        # The step's log-probabilities are of all tokens.
        self._never = frozenset(welcome.generation.suppress_tokens)
        _check_stop_ids(params.stop_token_ids or [], welcome.limits.vocab_size)
        self._left = max_output(
            prompt_tokens, params.max_tokens, params.beam_width, welcome.limits, many="beam_width"
        )
        # Each beam gives at most beam_width beams, and its ends.
        wanted = min(params.beam_width + len(self.ends), MAX_CANDIDATES) + len(self._never)
        self.candidates = min(wanted, welcome.limits.vocab_size)
        self._beams = [_Beam()]
        self._finished = _Finished(params.beam_width, params.length_penalty)

    def follow(self, outcomes: list[Outcome]) -> NextStep:
        """The next step, from the outcomes of a step's beams (see Follow). Raises RequestFailed."""
        ended = next((one for one in outcomes if one.finish != "length"), None)
        if ended is not None:
            if ended.finish == "error":
                raise RequestFailed(ended.error or "a step of the beam search failed")
            return ended.finish or "abort"
        self._left -= 1
        best = self._continuations(outcomes)
        for beam in best[: self._params.beam_width]:
            if beam.tokens[-1] in self.ends:
                self._finished.add(beam, "stop")
            elif not self._left:
                self._finished.add(beam, "length")
        beams = [beam for beam in best if beam.tokens[-1] not in self.ends]
        self._beams = beams[: self._params.beam_width]
        if not self._left:
            return "length"
        if not self._beams or self._finished.beats(self._beams[0]):
            return "stop"
        return [beam.tokens for beam in self._beams]

    def results(self, reason: FinishReason) -> list[tuple[float, _Beam, FinishReason]]:
        """The hypotheses, best first. reason: why the search ended; before its time, all beams end
        with it. Raises DeadlineExceeded where they had no token yet."""
        if reason not in ("stop", "length"):
            for beam in self._beams:
                if beam.tokens:
                    self._finished.add(beam, reason)
            if not self._finished.beams:
                raise DeadlineExceeded("the deadline passed before there was a first token")
        return self._finished.beams

    def _continuations(self, outcomes: list[Outcome]) -> list[_Beam]:
        """The best, best first."""
        beams = self._beams
        entries = [one.entry or _NOTHING for one in outcomes]
        totals = (
            (beam.total + logprob, number, place)
            for number, (beam, entry) in enumerate(zip(beams, entries, strict=True))
            for place, logprob in enumerate(entry.top_logprobs)
            if entry.top_ids[place] not in self._never
        )
        kept = max(2, 1 + len(self.ends)) * self._params.beam_width
        best = heapq.nlargest(kept, totals, key=lambda each: each[0])
        return [
            beams[number].grown(total, entries[number], place, self._params.logprobs)
            for total, number, place in best
        ]


def _check_stop_ids(ids: list[int], vocabulary: int) -> None:
    """The engine doesn't know them: they end beams here."""
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
    tokens = beam.tokens
    ended = reason == "stop"
    hidden = ended and not params.include_stop_str_in_output
    last = tokens[-1] if tokens else None
    stops = frozenset(params.stop_token_ids or ())
    return Hypothesis(
        token_ids=tokens,
        text=_text(tokens[:-1] if hidden else tokens, params, text),
        cumulative_logprob=beam.total,
        score=score,
        logprobs=None if params.logprobs is None else beam.steps(),
        finish_reason=reason,
        stop_reason=last if ended and last in stops else None,
    )


def _text(tokens: list[int], params: BeamSearchParams, text: ModelText) -> str:
    whole = SequenceText(
        text.tokenizer, skip_special_tokens=params.skip_special_tokens, stop=(), min_tokens=0
    )
    return whole.push(tokens).text + whole.finish().text


MAX_CANDIDATES = 256
"""Log-probabilities of tokens that an engine core reports in addition to those of ids that the
model never emits."""

_NOTHING = TokenLogprobs(0.0, (), ())
