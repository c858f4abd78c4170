"""POST /score and /v1/score."""

from __future__ import annotations

import msgspec

from penstock.client.pooling_inputs import pair_up
from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of
from penstock_gateway.pooling.fields import Flag, PoolFields, PoolUsage
from penstock_gateway.pooling.inputs import check_count, texts_of
from penstock_gateway.pooling.messages import ScoredParts, inputs_of_parts
from penstock_gateway.pooling.scoring import scores
from penstock_gateway.service import Service

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


OPERATIONS = [
    posting(
        path, "Score pairs of texts", ScoreRequest, ScoreReply, tag="pooling",
        headers=("x-deadline-ms",),
    )
    for path in ("/score", "/v1/score")
]  # fmt: skip


def routes(service: Service) -> list[OperationRoute]:
    endpoint = ScoreEndpoint(service)
    return [operation.route(endpoint) for operation in OPERATIONS]
