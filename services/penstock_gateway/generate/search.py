"""Beam search and best_of, whose choices are the best of a larger number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.client import BeamSearchParams, Hypothesis, beam_search, best_of
from penstock.client.turn_budget import TurnBudget
from penstock.errors import Field, InvalidRequest
from penstock.request.sampling_params import MAX_N
from penstock_gateway.generate.batch import failure_of
from penstock_gateway.generate.reply import ChoiceOutput
from penstock_gateway.request.fields import GenerateFields

if TYPE_CHECKING:
    from penstock.client import EngineClient
    from penstock.client.ready_params import ReadyParams
    from penstock.protocol.common import TokenLogprobs
    from penstock.request.sampling_params import SamplingParams
    from penstock.request.terms import Terms


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What one prompt's search gave."""

    choices: list[ChoiceOutput]
    generated: int
    """Tokens of all sequences that were tried; of a beam search, of the choices alone."""
    cached: int = 0
    """Tokens of the prompt that were found in the KV cache."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None


Search = Callable[
    ["EngineClient", list[int], "SamplingParams", "ReadyParams | None", str, "Terms"],
    Awaitable[SearchResult],
]
"""A search for one prompt. ReadyParams: see EngineClient.submit. The text is the request's name,
for logs. Cancel it to end it."""

NOT_IN_BEAMS = (
    "stop",
    "min_tokens",
    "repetition_detection",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "thinking_token_budget",
    "prompt_logprobs",
    "logprob_token_ids",
    "response_format",
    "structured_outputs",
    "structural_tag",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
)
_NEUTRAL: tuple[object, ...] = (None, [], {}, 0)
"""Values that ask for nothing, but for some fields with others of their own."""
_OTHER_NEUTRAL = {"repetition_penalty": (None, 1), "thinking_token_budget": (None, -1)}


def check_search(request: GenerateFields) -> None:
    """Checks what needs no model. Raises InvalidRequest."""
    n = 1 if request.n is None else request.n
    if request.best_of is not None and not n <= request.best_of <= MAX_N:
        raise InvalidRequest(
            f"best_of must be a whole number in [{n} (",
            Field("n"),
            f"), {MAX_N}], not {request.best_of}",
            param="best_of",
        )
    wider = request.best_of is not None and request.best_of != n
    if request.use_beam_search:
        _check_beams(request)
        if wider:
            raise InvalidRequest(
                f"best_of is {request.best_of}; with use_beam_search: true ",
                Field("n"),
                " is the number of beams, and ",
                Field("best_of"),
                f" must be the same, {n}",
                param="best_of",
            )
    if request.stream and (wider or request.use_beam_search):
        field = "best_of" if wider else "use_beam_search"
        raise InvalidRequest(
            f"{field} can't be combined with stream: true, because the best sequences are known "
            "only at the end",
            param=field,
        )


def search_of(request: GenerateFields) -> Search | None:
    """How the request's choices are found; None: each is a sequence of its own."""
    if request.use_beam_search:
        penalty = 1.0 if request.length_penalty is None else request.length_penalty
        return _beams(penalty)
    if request.best_of is not None and request.best_of != (request.n or 1):
        return _best_of(request.best_of)
    return None


async def search_all(
    search: Search,
    client: EngineClient,
    prompt_token_ids: list[list[int]],
    params: list[SamplingParams],
    *,
    name: str,
    terms: Terms,
    ready: Sequence[ReadyParams] = (),
) -> list[SearchResult]:
    """Results of a search for each prompt, in order. When one fails, or this is cancelled, none
    goes on. ready: see GenerationBatch.submit.

    Raises what a search raises, and what one of its choices failed with.
    """
    ready = ready or await client.ready_of_each(params, terms)
    budget = TurnBudget()

    async def one(i: int) -> SearchResult:
        await budget.take()
        return await search(client, prompt_token_ids[i], params[i], ready[i], f"{name}-{i}", terms)

    attempts = [asyncio.create_task(one(i)) for i in range(len(prompt_token_ids))]
    try:
        return list(await asyncio.gather(*attempts))
    finally:
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)


def _check_beams(request: GenerateFields) -> None:
    for field in NOT_IN_BEAMS:
        value = getattr(request, field)
        if value not in _OTHER_NEUTRAL.get(field, _NEUTRAL):
            raise InvalidRequest(
                f"{field} can't be combined with use_beam_search: true; it must be null",
                param=field,
            )
    if request.echo and getattr(request, "logprobs", None):
        raise InvalidRequest(
            "echo with logprobs can't be combined with use_beam_search: true", param="echo"
        )


def _beams(length_penalty: float) -> Search:
    async def search(
        client: EngineClient,
        prompt_token_ids: list[int],
        params: SamplingParams,
        ready: ReadyParams | None,
        name: str,
        terms: Terms,
    ) -> SearchResult:
        wanted = BeamSearchParams(
            beam_width=params.n,
            max_tokens=params.max_tokens or 0,
            ignore_eos=params.ignore_eos,
            length_penalty=length_penalty,
            include_stop_str_in_output=params.include_stop_str_in_output,
            stop_token_ids=params.stop_token_ids,
            skip_special_tokens=params.skip_special_tokens,
            logprobs=params.logprobs,
        )
        found = await beam_search(client, prompt_token_ids, wanted, name=name, terms=terms)
        return SearchResult(_choices(found), sum(len(one.token_ids) for one in found))

    return search


def _best_of(count: int) -> Search:
    async def search(
        client: EngineClient,
        prompt_token_ids: list[int],
        params: SamplingParams,
        ready: ReadyParams | None,
        name: str,
        terms: Terms,
    ) -> SearchResult:
        found = await best_of(
            client, prompt_token_ids, params, best_of=count, name=name, terms=terms, ready=ready
        )
        choices = _choices(found.chosen)
        return SearchResult(
            choices, found.generated_tokens, found.cached_tokens or 0, found.prompt_logprobs
        )

    return search


def _choices(found: list[Hypothesis]) -> list[ChoiceOutput]:
    for one in found:
        failure = failure_of(one.finish_reason, one.error)
        if failure is not None:
            raise failure
    return [
        ChoiceOutput(
            [one.text], list(one.token_ids), one.logprobs or [], one.finish_reason, one.stop_reason
        )
        for one in found
    ]
