"""Scores of pairs of texts and pictures, however the model makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from penstock.client.late_interaction import max_sim
from penstock.client.pool_request import PoolResult, compares_tokens, pooling_model
from penstock.client.pooling_inputs import (
    PoolInput,
    conversation_template,
    cosine,
    refuse_instruction,
    scores_pairs,
)
from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.protocol.common import Pooling
from penstock_gateway.generate.chunked_reply import Pace, paced
from penstock_gateway.pooling.embeddings import NUMBERS_PER_TOKEN
from penstock_gateway.pooling.endpoint import Call
from penstock_gateway.pooling.fields import MAX_NUMBERS
from penstock_gateway.pooling.scored import (
    Scored,
    ScoredChat,
    conversation,
    message_of,
)
from penstock_gateway.request.tokenising import off_the_loop

PRODUCTS = 1000
"""Multiply-adds that take as long as a character of a text that is tokenised, about."""


MAX_PAIRED_PARTS = 1 << 16
"""Parts of all pairs of a request, each counted as often as it stands in one."""


CHATS_AT_ONCE = 16
"""Conversations of one request that are texts at a time, and not token ids yet."""


class ScoreOptions(NamedTuple):
    """activate: false gives a cross-encoder's own number.  instruction: what makes a document a
    good one; None: the model's own."""

    activate: bool | None = None
    instruction: str | None = None


async def scores(
    call: Call,
    first: Sequence[Scored],
    second: Sequence[Scored],
    pairs: list[tuple[int, int]],
    options: ScoreOptions,
) -> tuple[list[float], list[PoolResult]]:
    """A score for each pair (indexes into first and second), and the results that it cost.

    By the head of a cross-encoder, which reads both inputs at once; else of their embeddings, each
    of which is made once: by their cosine, or by late interaction.
    """
    if scores_pairs(call.engine.welcome):
        results = await _of_pairs(call, [(first[one], second[two]) for one, two in pairs], options)
        return [result.values()[0] for result in results], results
    if compares_tokens(call.engine.welcome):
        refuse_instruction(options.instruction)
        return await _late_scores(call, first, second, pairs)
    results = await each_vector(
        call, [*first, *second], Pooling("embed"), instruction=options.instruction
    )
    found = []
    async with paced(sum(result.size for result in results) // NUMBERS_PER_TOKEN) as pace:
        for one, two in pairs:
            found.append(cosine(results[one].values(), results[len(first) + two].values()))
            await pace.rest()
    return found, results


async def _of_pairs(
    call: Call, pairs: Sequence[tuple[Scored, Scored]], options: ScoreOptions
) -> list[PoolResult]:
    """What a cross-encoder makes of pairs. Raises InvalidRequest, and what preparing media
    raises."""
    _check_parts(pairs)
    asked = Pooling("classify", activate=options.activate)
    template = conversation_template(call.engine.welcome)
    if template is not None:
        chats = [partial(conversation, *pair, template, options.instruction) for pair in pairs]
        given = {id(each): each for pair in pairs for each in pair}
        return await _of_chats(call, given.values(), chats, asked)
    if pooling_model(call.engine.welcome).template is None:
        refuse_instruction(options.instruction)
    texts: dict[int, str] = {}
    pace = Pace()
    for each in chain.from_iterable(pairs):
        if id(each) not in texts:
            texts[id(each)] = each.text()
            await pace.rest()
    paired = [(texts[id(query)], texts[id(document)]) for query, document in pairs]
    return await call.pool(await call.read_pairs(paired, options.instruction), asked)


def _check_parts(pairs: Sequence[tuple[Scored, Scored]]) -> None:
    """Raises InvalidRequest for more parts of all pairs together than can be put together."""
    parts = sum(len(query.parts) + len(document.parts) for query, document in pairs)
    if parts > MAX_PAIRED_PARTS:
        largest = max(chain.from_iterable(pairs), key=lambda each: len(each.parts))
        raise InvalidRequest(
            f"{len(pairs)} pairs have {parts} parts together, {len(largest.parts)} of them in"
            f" {largest.where}; at most {MAX_PAIRED_PARTS} are allowed",
            param=largest.where,
        )


async def each_vector(
    call: Call, given: Sequence[Scored], asked: Pooling, *, instruction: str | None = None
) -> list[PoolResult]:
    """Vectors of inputs, as `asked`. Of a decoder that sees, all are conversations in its own
    format if any of them is more than a bare text, or there is an instruction: so texts are
    comparable with pictures. Raises as `_of_pairs`."""
    media = call.engine.welcome.media
    sees = media is not None and not media.alone
    if sees and (instruction is not None or not all(each.plain for each in given)):
        chats = [partial(message_of, each, instruction) for each in given]
        return await _of_chats(call, given, chats, asked)
    refuse_instruction(instruction)
    alone = []
    pace = Pace()
    for each in given:
        alone.append(each.alone())
        await pace.rest()
    return await call.pool(await call.read_each(alone), asked)


async def _of_chats(
    call: Call,
    given: Iterable[Scored],
    chats: Sequence[Callable[[], ScoredChat]],
    asked: Pooling,
) -> list[PoolResult]:
    """What is made of conversations with the inputs. Few are written at a time: all together have
    the query as often as there are documents. Raises InvalidRequest that names an input, and what
    preparing media raises."""
    pace = Pace()
    for each in given:
        each.check()
        await pace.rest()
    few = asyncio.Semaphore(CHATS_AT_ONCE)

    async def made(write: Callable[[], ScoredChat], lease: MediaLease) -> PoolInput:
        async with few:
            await asyncio.sleep(0)  # If one before it was refused, this one has been cancelled.
            chat = write()
            try:
                return await call.read_chat(chat.messages, add_generation_prompt=True, lease=lease)
            except InvalidRequest as error:
                raise chat.in_the_bodys_terms(error) from None

    return await call.pool_made([partial(made, chat) for chat in chats], asked)


async def _late_scores(
    call: Call,
    queries: Sequence[Scored],
    documents: Sequence[Scored],
    pairs: list[tuple[int, int]],
) -> tuple[list[float], list[PoolResult]]:
    """Texts are computed in groups, as vectors of all tokens of many texts don't fit into memory;
    the vectors of the one that all others meet are kept."""
    inputs = await call.read([each.text() for each in queries], role="query")
    inputs += await call.read([each.text() for each in documents])
    size = pooling_model(call.engine.welcome).token_size
    sizes = [size * len(each.prompt_token_ids) for each in inputs]
    places = [(one, len(queries) + two) for one, two in pairs]
    found: list[float] = []
    counted: dict[int, PoolResult] = {}
    kept: dict[int, PoolResult] = {}
    for group in grouped(places, sizes, MAX_NUMBERS):
        wanted = {place: kept[place] for pair in group for place in pair if place in kept}
        missing = [
            place for place in dict.fromkeys(chain.from_iterable(group)) if place not in wanted
        ]
        results = await call.pool([inputs[place] for place in missing], Pooling("token_embed"))
        kept = wanted | dict(zip(missing, results, strict=True))
        for one, two in group:
            query, document = kept[one], kept[two]
            products = query.vectors.shape[0] * document.vectors.shape[0] * size
            # Where few texts are worked on at once: a pair of long ones takes half a second.
            score = await off_the_loop(partial(max_sim, query, document), products // PRODUCTS)
            found.append(score)
            await asyncio.sleep(0)  # Others have a turn: a pair takes up to a millisecond.
        counted |= {place: kept[place].without_vectors() for place in missing}
    return found, [counted[place] for place in sorted(counted)]


def grouped(
    pairs: Iterable[tuple[int, int]], sizes: Sequence[int], most: int
) -> Iterator[list[tuple[int, int]]]:
    """Neighbouring pairs of inputs, whose different inputs have at most `most` numbers together, or
    a single pair. sizes: of the inputs."""
    group: list[tuple[int, int]] = []
    inside: set[int] = set()
    numbers = 0
    for pair in pairs:
        new = {*pair} - inside
        if group and numbers + sum(sizes[place] for place in new) > most:
            yield group
            group, inside, numbers, new = [], set(), 0, {*pair}
        group.append(pair)
        inside |= new
        numbers += sum(sizes[place] for place in new)
    if group:
        yield group
