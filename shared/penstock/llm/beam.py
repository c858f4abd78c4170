"""Beam search over several prompts."""

from __future__ import annotations

import asyncio
import itertools

from penstock.client import BeamSearchParams, EngineClient, beam_search
from penstock.errors import EngineUnavailable, PenstockError
from penstock.llm.beam_outputs import BeamSearchOutput, beam_output
from penstock.request.terms import Terms

_NUMBERS = itertools.count()


async def search_all(
    client: EngineClient,
    prompt_token_ids: list[list[int]],
    params: BeamSearchParams,
    terms: list[Terms],
    *,
    window: int,
) -> list[BeamSearchOutput]:
    """One output for each prompt, in order.

    window: sequences worth having in flight; every search has one for each beam.
    Raises what beam_search raises, for the first that does; the others are ended.
    """
    if client.text is None:
        raise EngineUnavailable("the engine has not said yet which model it serves")
    tokenizer = client.text.tokenizer
    room = asyncio.Semaphore(max(1, window // params.beam_width))

    async def run(token_ids: list[int], when: Terms) -> BeamSearchOutput:
        async with room:
            name = f"beam-{next(_NUMBERS)}"
            found = await beam_search(client, token_ids, params, name=name, terms=when)
        return beam_output(token_ids, found, tokenizer)

    try:
        async with asyncio.TaskGroup() as group:
            pairs = zip(prompt_token_ids, terms, strict=True)
            tasks = [group.create_task(run(token_ids, when)) for token_ids, when in pairs]
    except* PenstockError as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
