"""How similar or relevant two texts, or a text and a picture, are to each other."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.pool_request import PoolResult
from penstock.client.pooling_inputs import cosine, scores_pairs
from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource
from penstock.media.words import WORDS
from penstock.protocol.common import Pooling
from penstock_gateway.pooling.endpoint import Call


async def scores(
    call: Call,
    first: Sequence[str | MediaSource],
    second: Sequence[str | MediaSource],
    pairs: list[tuple[int, int]],
    *,
    activate: bool | None = None,
) -> tuple[list[float], list[PoolResult]]:
    """A score for each pair (indexes into first and second), and the results that it cost.

    By the head of a cross-encoder, which reads both texts at once; else by the cosine of their
    embeddings, each of which is made once.
    """
    if scores_pairs(call.engine.welcome):
        inputs = await call.read_pairs(
            [(_text(first[one]), _text(second[two])) for one, two in pairs]
        )
        results = await call.pool(inputs, Pooling("classify", activate=activate))
        return [result.values()[0] for result in results], results
    inputs = await call.read_each([*first, *second])
    results = await call.pool(inputs, Pooling("embed"))
    vectors = [result.values() for result in results]
    return [cosine(vectors[one], vectors[len(first) + two]) for one, two in pairs], results


def _text(given: str | MediaSource) -> str:
    if isinstance(given, str):
        return given
    raise InvalidRequest(
        f"{given.where} is a {WORDS[given.kind]}; this model scores pairs of texts",
        param=given.where,
        code="unsupported_value",
    )
