"""Computes an answer again, and compares tokens.

What the receipt says the output is, is given to the engine as the output's prediction: so many of
its tokens are computed in one step, and each is checked by sampling in its place, with everything
that sampling depends on. Speculative decoding changes no output, so this is the same comparison as
with an answer that is computed token by token, and sooner done.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from array import array

import msgspec

from penstock.client import EngineClient, SequenceDelta
from penstock.errors import RequestFailed
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_frontend import MAX_PREDICTION_TOKENS, OpenSequence
from penstock.request.sampling_params import SamplingParams
from penstock.request.terms import Terms

QUICKLY = {
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 64},
    "max_step_slowdown": 0.0,
}
"""Settings of an engine that verifies: as many tokens in a step as there may be. They change no
output."""
ENDED = ("stop", "length", "repetition")
"""Finish reasons that follow from the request; others came from outside."""
AT_ONCE = 32
"""Positions that are sampled at a time."""

_NUMBERS = itertools.count()


class Place(msgspec.Struct, frozen=True):
    """Where an output differs. at: index of the token.  said, computed: token ids; None: the output
    ends there.  reason: the finish reason that was computed, where only that differs.  logprob: the
    log-probability that was computed, where the token is equal and that isn't.  broken: what the
    grammar has against the tokens before it."""

    at: int
    said: int | None
    computed: int | None
    reason: str | None = None
    logprob: float | None = None
    broken: str = ""


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """An output as a receipt has it. sequence: its number among the prompt's n.  logprobs:
    log-probabilities of its tokens; None: the receipt has none."""

    prompt: list[int]
    params: SamplingParams
    sequence: int
    output: list[int]
    finish_reason: str | None
    logprobs: list[float] | None = None

    @property
    def told(self) -> SamplingParams:
        """The parameters, with log-probabilities where there are some to compare."""
        if self.logprobs is None:
            return self.params
        return msgspec.structs.replace(self.params, logprobs=0)

    def difference(self, first: int, delta: SequenceDelta) -> Place | None:
        """The first place of what is computed that the output hasn't. first: index of the delta's
        first token. Log-probabilities are equal where the 32-bit floats are that were signed."""
        for at, token in enumerate(delta.token_ids, start=first):
            if at >= len(self.output):
                return Place(at, None, token)
            if self.output[at] != token:
                return Place(at, self.output[at], token)
            if self.logprobs is None:
                continue
            found = delta.logprobs[at - first].logprob if delta.logprobs else math.nan
            if array("f", [found]) != array("f", self.logprobs[at : at + 1]):
                return Place(at, token, token, logprob=found)
        return None


def _check_computed(delta: SequenceDelta) -> None:
    """Raises RequestFailed where the engine has given the computation up, which says nothing of the
    output."""
    if delta.finish_reason in ("error", "abort", "timeout"):
        raise RequestFailed(delta.error or f"the engine has ended it ({delta.finish_reason})")


class Replay:
    """client: of an engine that computes as the receipt's did.  terms: with the adapter."""

    def __init__(self, client: EngineClient, terms: Terms) -> None:
        self._client = client
        self._terms = terms

    async def whole(self, claimed: Claimed) -> Place | None:
        """Where the output, or a log-probability that the receipt has, first differs from what is
        computed; None: nowhere. All of it is, and whether it ends there. Raises RequestFailed and
        what `submit` raises."""
        output, params = claimed.output, claimed.told
        ends = claimed.finish_reason in ENDED
        if not output and not ends:
            return None
        found = 0
        reason: str | None = None
        generation = await self._client.submit(
            claimed.prompt,
            params,
            name=f"verify-{next(_NUMBERS)}",
            terms=self._terms,
            prediction=output[:MAX_PREDICTION_TOKENS],
            claimed=True,
            sequences=(OpenSequence(claimed.sequence),),
        )
        try:
            async for deltas in generation:
                for delta in deltas:
                    _check_computed(delta)
                    place = claimed.difference(found, delta)
                    found += len(delta.token_ids)
                    reason = delta.finish_reason
                    if place is not None or (found >= len(output) and not ends):
                        return place
        finally:
            generation.abort()
        if found < len(output):
            return Place(found, output[found], None)
        return Place(len(output), None, None, reason) if reason != claimed.finish_reason else None

    async def positions(self, claimed: Claimed, count: int) -> list[Place]:
        """Where the output differs among so many positions that are drawn anew each time, in order:
        each is sampled after the output's own tokens before it. Raises as `whole` does, but not
        where those tokens can't stand in the request's grammar."""
        drawn = random.SystemRandom().sample(
            range(len(claimed.output)), min(count, len(claimed.output))
        )
        found: list[Place | None] = []
        # The last one first: it computes the keys and values for all that lie before it.
        drawn.sort(reverse=True)
        for begin, end in [(0, 1), *((at, at + AT_ONCE) for at in range(1, len(drawn), AT_ONCE))]:
            batch = drawn[begin:end]
            found += await asyncio.gather(*(self._position(claimed, at) for at in batch))
        return sorted((each for each in found if each is not None), key=lambda place: place.at)

    async def _position(self, claimed: Claimed, at: int) -> Place | None:
        said = claimed.output[at]
        # A stop string would need the text before, and ends nothing that goes on. Nothing after
        # this token is wanted, so nothing is drafted either.
        params = msgspec.structs.replace(
            claimed.told,
            stop=None,
            max_tokens=at + 1,
            min_tokens=min(claimed.params.min_tokens, at + 1),
        )
        generation = await self._client.submit(
            claimed.prompt,
            params,
            name=f"verify-{next(_NUMBERS)}",
            terms=self._terms,
            sequences=(OpenSequence(claimed.sequence, claimed.output[:at]),),
        )
        try:
            async for deltas in generation:
                for delta in deltas:
                    if delta.error_code == "grammar_mismatch":
                        return Place(at, said, None, broken=delta.error or "no reason was told")
                    _check_computed(delta)
                    if delta.token_ids:
                        return claimed.difference(at, delta)
        finally:
            generation.abort()
        return Place(at, said, None)

    async def logprobs(self, claimed: Claimed) -> list[TokenLogprobs]:
        """Log-probabilities of the output's tokens, and the likeliest one in each place: of the
        distribution before parameters change it."""
        whole = [*claimed.prompt, *claimed.output]
        params = SamplingParams(max_tokens=0, prompt_logprobs=1)
        generation = await self._client.submit(
            whole, params, name=f"verify-{next(_NUMBERS)}", terms=self._terms
        )
        try:
            async for _ in generation:
                pass
            scored = generation.prompt_logprobs or []
        finally:
            generation.abort()
        found = [each for each in scored[len(claimed.prompt) :] if each is not None]
        if len(found) != len(claimed.output):
            raise RequestFailed("the engine gave no log-probabilities of the output")
        return found
