"""How similar or relevant texts and pictures are to each other: POST /score, and POST /rerank in
the formats of Jina's and Cohere's APIs, and of Text Embeddings Inference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from penstock.client.late_interaction import max_sim
from penstock.client.pool_request import PoolResult, compares_tokens, pooling_model
from penstock.client.pooling_inputs import (
    PoolInput,
    conversation_template,
    cosine,
    pair_up,
    refuse_instruction,
    scores_pairs,
)
from penstock.errors import InvalidRequest
from penstock.media.desk import MediaLease
from penstock.protocol.common import Pooling
from penstock_gateway.generate.chunked_reply import Pace, paced
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.cutting import Direction, read_options
from penstock_gateway.pooling.embeddings import NUMBERS_PER_TOKEN
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of
from penstock_gateway.pooling.fields import MAX_NUMBERS, Flag, PoolFields, PoolUsage, Text, Whole
from penstock_gateway.pooling.scored import (
    Document,
    Scored,
    ScoredChat,
    conversation,
    message_of,
    scored_inputs,
    scored_of,
)
from penstock_gateway.pooling.shortened import shortened
from penstock_gateway.request.input_texts import check_count, texts_of
from penstock_gateway.request.tokenising import off_the_loop
from penstock_gateway.service import Service

PRODUCTS = 1000
"""Multiply-adds that take as long as a character of a text that is tokenised, about."""

MAX_PAIRED_PARTS = 1 << 16
"""Parts of all pairs of a request, each counted as often as it stands in one."""

CHATS_AT_ONCE = 16
"""Conversations of one request that are texts at a time, and not token ids yet."""


class RerankRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """query: a text, or of a model that sees an object as documents have them.  documents: texts,
    or objects; or one object, each part of whose `content` is a document.  top_n: the best so many;
    absent or 0: all.  return_documents: false leaves their texts out.  use_activation,
    instruction: as in score.
    max_tokens_per_doc: of Cohere; a longer text loses its end.  rank_fields, max_chunks_per_doc:
    also of Cohere, without effect: an object is ranked by all that it has, and never in chunks.
    texts: of Text Embeddings Inference, in place of documents: then the answer is a list of index
    and score.  return_text: with their texts.  raw_scores: true gives a cross-encoder's own number.
    truncate, truncation_direction: as in /embed."""

    query: str | Document
    documents: Document | list[str | Document] | None = None
    texts: list[str] | None = None
    return_text: Flag = None
    raw_scores: Flag = None
    truncate: Flag = None
    truncation_direction: Direction | None = None
    top_n: Whole = None
    return_documents: Flag = None
    use_activation: Flag = None
    instruction: Text = None
    max_tokens_per_doc: Whole = None

    # Without effect on the output.
    rank_fields: list[str] | None = None
    max_chunks_per_doc: Whole = None


class RankedDocument(msgspec.Struct, frozen=True):
    """text: of the document; empty for a picture."""

    text: str


class Ranked(msgspec.Struct, frozen=True, omit_defaults=True):
    """index: of the document in the request."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RankedText(msgspec.Struct, frozen=True, omit_defaults=True):
    """index: of the text in the request."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class RerankReply(msgspec.Struct, frozen=True):
    """results: the best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PoolUsage


class Rerank(PoolEndpoint[RerankRequest]):
    request_type = RerankRequest
    id_prefix = "rerank"

    async def answer(self, request: RerankRequest, call: Call) -> RerankReply | list[RankedText]:
        if request.top_n is not None and request.top_n < 0:
            raise InvalidRequest(
                f"top_n is {request.top_n}; it must be a whole number ≥ 0", param="top_n"
            )
        query = [scored_of(request.query, "query")]
        if request.max_tokens_per_doc is not None:
            request = msgspec.structs.replace(request, **await _shortened(request, call))
        documents = _documents(request)
        read_options(call, request)
        pairs = [(0, index) for index in range(len(documents))]
        activate = False if request.raw_scores else request.use_activation
        options = ScoreOptions(activate, request.instruction)
        found, results = await scores(call, query, documents, pairs, options)
        order = sorted(range(len(found)), key=lambda index: (-found[index], index))
        if request.texts is not None:
            texts = request.texts if request.return_text else [UNSET] * len(found)
            return [
                RankedText(index, found[index], texts[index])
                for index in order[: request.top_n or None]
            ]
        shown = request.return_documents is not False
        ranked = [
            Ranked(
                index,
                found[index],
                RankedDocument(documents[index].label()) if shown else UNSET,
            )
            for index in order[: request.top_n or None]
        ]
        return RerankReply(call.id, call.model, ranked, usage_of(results))


async def _shortened(request: RerankRequest, call: Call) -> dict[str, object]:
    """Its documents and texts, none of more than max_tokens_per_doc. Raises InvalidRequest."""
    most = request.max_tokens_per_doc or 0
    return {
        name: given if not isinstance(given, list) else await shortened(given, most, call)
        for name, given in (("documents", request.documents), ("texts", request.texts))
    }


def _documents(request: RerankRequest) -> list[Scored]:
    """What is ranked, under either name. Raises InvalidRequest for both, or neither, and for fields
    that belong to the other."""
    given = [name for name in ("documents", "texts") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"one of documents and texts must be given, not {'both' if given else 'neither'}",
            param="documents",
            code=None if given else "missing_required_parameter",
        )
    if request.documents is not None:
        others = (("return_text", "return_documents"), ("raw_scores", "use_activation"))
        for name, instead in others:
            if getattr(request, name) is not None:
                raise InvalidRequest(
                    f"{name} is a field of requests with texts; with documents it is {instead}",
                    param=name,
                )
        return scored_inputs("documents", request.documents)
    return scored_inputs("texts", texts_of("texts", request.texts or []))


RERANK = [
    posting(
        path, "Rank documents by relevance to a query", RerankRequest,
        RerankReply | list[RankedText], tag="pooling", headers=("x-deadline-ms",),
    )
    for path in ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
]  # fmt: skip


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


Inputs = str | Document | list[str | Document] | None


class ScoreRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """text_1 and text_2, or queries and documents: one input meets many, or each its own. items,
    data_1, data_2: vLLM's other names for them. Each is a text, or of a model that sees an object
    with a text, an image, or `content`; of an object with `content` in place of a list, each part
    is an input.
    use_activation: false gives a cross-encoder's own number.  instruction: what makes a document a
    good one, in place of the model's own."""

    text_1: Inputs = None
    text_2: Inputs = None
    queries: Inputs = None
    documents: Inputs = None
    items: Inputs = None
    data_1: Inputs = None
    data_2: Inputs = None
    use_activation: Flag = None
    instruction: Text = None


class Score(msgspec.Struct, frozen=True, tag_field="object", tag="score"):
    index: int
    score: float


class ScoreReply(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    id: str
    created: int
    model: str
    data: list[Score]
    usage: PoolUsage


class ScoreEndpoint(PoolEndpoint[ScoreRequest]):
    request_type = ScoreRequest
    id_prefix = "score"

    async def answer(self, request: ScoreRequest, call: Call) -> ScoreReply:
        first = inputs_of(request, "text_1", "queries", "data_1")
        second = inputs_of(request, "text_2", "documents", "items", "data_2")
        pairs = pair_up(len(first), len(second))
        check_count("text_2", len(pairs))
        options = ScoreOptions(request.use_activation, request.instruction)
        found, results = await scores(call, first, second, pairs, options)
        data = [Score(index, score) for index, score in enumerate(found)]
        return ScoreReply(call.id, call.created, call.model, data, usage_of(results))


def inputs_of(request: ScoreRequest, *names: str) -> list[Scored]:
    """The inputs under one of their names. Raises InvalidRequest for several, or none."""
    given = {each: value for each in names if (value := getattr(request, each)) is not None}
    if len(given) != 1:
        raise InvalidRequest(
            f"one of {', '.join(names)} must be given, not {' and '.join(given) or 'none'}",
            param=names[0],
            code=None if given else "missing_required_parameter",
        )
    ((found, value),) = given.items()
    return scored_inputs(found, value)


SCORE = [
    posting(
        path, "Score pairs of texts", ScoreRequest, ScoreReply, tag="pooling",
        headers=("x-deadline-ms",),
    )
    for path in ("/score", "/v1/score")
]  # fmt: skip


def routes(service: Service) -> list[OperationRoute]:
    score, rerank = ScoreEndpoint(service), Rerank(service)
    return [
        *(operation.route(score) for operation in SCORE),
        *(operation.route(rerank) for operation in RERANK),
    ]
