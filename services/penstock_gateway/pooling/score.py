"""How similar or relevant two texts, or a text and a picture, are to each other: POST /score, and
POST /rerank in the formats of Jina's and Cohere's APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import msgspec
from msgspec import UNSET, UnsetType

from penstock.client.late_interaction import max_sim
from penstock.client.pool_request import PoolResult, compares_tokens, pooling_model
from penstock.client.pooling_inputs import cosine, pair_up, scores_pairs
from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource
from penstock.media.words import WORDS
from penstock.protocol.common import Pooling
from penstock_gateway.generate.chunked_reply import paced
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.embeddings import NUMBERS_PER_TOKEN
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of
from penstock_gateway.pooling.fields import (
    MAX_NUMBERS,
    Flag,
    PoolFields,
    PoolUsage,
    Whole,
    check_count,
    texts_of,
)
from penstock_gateway.pooling.messages import ScoredParts, inputs_of_parts
from penstock_gateway.request.tokenising import off_the_loop
from penstock_gateway.service import Service

PRODUCTS = 1000
"""Multiply-adds that take as long as a character of a text that is tokenised, about."""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


class RerankRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """documents: texts, or objects with a text.  top_n: the best so many; absent or 0: all.
    return_documents: false leaves their texts out.  use_activation: as in score."""

    query: str
    documents: list[str | Document]
    top_n: Whole = None
    return_documents: Flag = None
    use_activation: Flag = None


class Ranked(msgspec.Struct, frozen=True, omit_defaults=True):
    """index: of the document in the request."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankReply(msgspec.Struct, frozen=True):
    """results: the best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PoolUsage


class Rerank(PoolEndpoint[RerankRequest]):
    request_type = RerankRequest
    id_prefix = "rerank"

    async def answer(self, request: RerankRequest, call: Call) -> RerankReply:
        if request.top_n is not None and request.top_n < 0:
            raise InvalidRequest(
                f"top_n is {request.top_n}; it must be a whole number ≥ 0", param="top_n"
            )
        query = texts_of("query", request.query)
        given = [each if isinstance(each, str) else each.text for each in request.documents]
        documents = texts_of("documents", given)
        pairs = [(0, index) for index in range(len(documents))]
        found, results = await scores(
            call, query, documents, pairs, activate=request.use_activation
        )
        order = sorted(range(len(found)), key=lambda index: (-found[index], index))
        shown = request.return_documents is not False
        ranked = [
            Ranked(index, found[index], Document(documents[index]) if shown else UNSET)
            for index in order[: request.top_n or None]
        ]
        return RerankReply(call.id, call.model, ranked, usage_of(results))


RERANK = [
    posting(
        path, "Rank documents by relevance to a query", RerankRequest, RerankReply, tag="pooling",
        headers=("x-deadline-ms",),
    )
    for path in ("/rerank", "/v1/rerank", "/v2/rerank")
]  # fmt: skip


async def scores(
    call: Call,
    first: Sequence[str | MediaSource],
    second: Sequence[str | MediaSource],
    pairs: list[tuple[int, int]],
    *,
    activate: bool | None = None,
) -> tuple[list[float], list[PoolResult]]:
    """A score for each pair (indexes into first and second), and the results that it cost.

    By the head of a cross-encoder, which reads both texts at once; else of their embeddings, each
    of which is made once: by their cosine, or by late interaction.
    """
    if scores_pairs(call.engine.welcome):
        inputs = await call.read_pairs(
            [(_text(first[one]), _text(second[two])) for one, two in pairs]
        )
        results = await call.pool(inputs, Pooling("classify", activate=activate))
        return [result.values()[0] for result in results], results
    if compares_tokens(call.engine.welcome):
        return await _late_scores(call, first, second, pairs)
    inputs = await call.read_each([*first, *second])
    results = await call.pool(inputs, Pooling("embed"))
    found = []
    async with paced(sum(result.size for result in results) // NUMBERS_PER_TOKEN) as pace:
        for one, two in pairs:
            found.append(cosine(results[one].values(), results[len(first) + two].values()))
            await pace.rest()
    return found, results


async def _late_scores(
    call: Call,
    queries: Sequence[str | MediaSource],
    documents: Sequence[str | MediaSource],
    pairs: list[tuple[int, int]],
) -> tuple[list[float], list[PoolResult]]:
    """Texts are computed in groups, as vectors of all tokens of many texts don't fit into memory;
    the vectors of the one that all others meet are kept."""
    inputs = await call.read([_text(each) for each in queries], role="query")
    inputs += await call.read([_text(each) for each in documents])
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


def _text(given: str | MediaSource) -> str:
    if isinstance(given, str):
        return given
    raise InvalidRequest(
        f"{given.where} is a {WORDS[given.kind]}; this model scores texts",
        param=given.where,
        code="unsupported_value",
    )


Texts = str | list[str] | ScoredParts | None


class ScoreRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """text_1 and text_2, or queries and documents: one text meets many, or each its own. Of a
    model that makes vectors of texts and pictures, `content` has parts, each of which is either.
    use_activation: false gives a cross-encoder's own number."""

    text_1: Texts = None
    text_2: Texts = None
    queries: Texts = None
    documents: Texts = None
    use_activation: Flag = None


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
        first = one_of(request, "text_1", "queries")
        second = one_of(request, "text_2", "documents")
        pairs = pair_up(len(first), len(second))
        check_count("text_2", len(pairs))
        found, results = await scores(call, first, second, pairs, activate=request.use_activation)
        data = [Score(index, score) for index, score in enumerate(found)]
        return ScoreReply(call.id, call.created, call.model, data, usage_of(results))


def one_of(request: ScoreRequest, name: str, other: str) -> list[str | MediaSource]:
    """The texts, or pictures, under either name. Raises InvalidRequest for both, or neither."""
    given = {each: getattr(request, each) for each in (name, other)}
    given = {each: value for each, value in given.items() if value is not None}
    if len(given) != 1:
        raise InvalidRequest(
            f"one of {name} and {other} must be given, not {'both' if given else 'neither'}",
            param=name,
            code=None if given else "missing_required_parameter",
        )
    ((found, value),) = given.items()
    if not isinstance(value, ScoredParts):
        return [*texts_of(found, value)]
    parts = inputs_of_parts(value, found)
    check_count(found, len(parts))
    return parts


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
