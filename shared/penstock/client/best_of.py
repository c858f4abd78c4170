"""best_of: more sequences than are wanted, of which the most likely are kept."""

from __future__ import annotations

import msgspec

from penstock.client.beam_params import Hypothesis
from penstock.client.deltas import GrowingDelta, SequenceDelta
from penstock.client.engine_client import NO_TERMS, EngineClient
from penstock.client.generation import Generation
from penstock.client.ready_params import ReadyParams, without_ready
from penstock.errors import Field, InvalidRequest
from penstock.protocol.common import TokenLogprobs
from penstock.request.sampling_params import MAX_N, SamplingParams
from penstock.request.terms import Terms


class BestOf(msgspec.Struct, kw_only=True):
    """chosen: params.n of them, the one with the highest log-probability per token first.
    generated_tokens: of all sequences, those that were not chosen included.
    cached_tokens, prompt_logprobs: as a Generation's."""

    chosen: list[Hypothesis]
    generated_tokens: int
    cached_tokens: int | None
    prompt_logprobs: list[TokenLogprobs | None] | None


async def best_of(
    client: EngineClient,
    prompt_token_ids: list[int],
    params: SamplingParams,
    *,
    best_of: int,
    name: str,
    terms: Terms = NO_TERMS,
    ready: ReadyParams | None = None,
) -> BestOf:
    """Generates `best_of` sequences and returns the params.n best; equal ones by index.

    Their logprobs are given where params asks for them.  ready: see EngineClient.submit.
    Cancelling it aborts the request.  Raises InvalidRequest, and what EngineClient.submit and a
    Generation raise.
    """
    if not isinstance(best_of, int) or not params.n <= best_of <= MAX_N:
        raise InvalidRequest(
            f"best_of must be a whole number in [{params.n} (",
            Field("n"),
            f"), {MAX_N}], not {best_of!r}",
            param="best_of",
        )
    wider = msgspec.structs.replace(
        params if ready is None else without_ready(params),
        n=best_of,
        logprobs=0 if params.logprobs is None else params.logprobs,
    )
    generation = await client.submit(
        prompt_token_ids, wider, name=name, terms=terms, read_at_end=True, ready=ready
    )
    whole = await _to_end(generation, best_of)
    found = [_hypothesis(delta, params.logprobs is not None) for delta in whole]
    ranked = sorted(found, key=lambda hypothesis: -hypothesis.score)
    return BestOf(
        chosen=ranked[: params.n],
        generated_tokens=sum(len(hypothesis.token_ids) for hypothesis in found),
        cached_tokens=generation.cached_tokens,
        prompt_logprobs=generation.prompt_logprobs,
    )


async def _to_end(generation: Generation, count: int) -> list[SequenceDelta]:
    """Each sequence's deltas in one."""
    growing = [GrowingDelta(SequenceDelta(index=index)) for index in range(count)]
    try:
        async for deltas in generation:
            for delta in deltas:
                growing[delta.index].add(delta)
    finally:
        generation.abort()
    return [each.whole() for each in growing]


def _hypothesis(delta: SequenceDelta, wants_logprobs: bool) -> Hypothesis:
    logprobs = delta.logprobs or []
    total = sum(entry.logprob for entry in logprobs)
    return Hypothesis(
        token_ids=delta.token_ids,
        text=delta.text,
        cumulative_logprob=total,
        # A sequence of no tokens is as likely as can be, and of no use: it comes last.
        score=total / len(logprobs) if logprobs else float("-inf"),
        logprobs=logprobs if wants_logprobs else None,
        finish_reason=delta.finish_reason or "abort",
        stop_reason=delta.stop_reason,
        error=delta.error,
    )
