"""POST /score: how similar or relevant texts and pictures are to each other."""

from __future__ import annotations

import msgspec

from penstock.client.pooling_inputs import (
    pair_up,
)
from penstock.errors import InvalidRequest
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of
from penstock_gateway.pooling.fields import Flag, PoolFields, PoolUsage, Text
from penstock_gateway.pooling.scored import (
    Document,
    Scored,
    scored_inputs,
)
from penstock_gateway.pooling.scoring import ScoreOptions, scores
from penstock_gateway.request.input_texts import check_count
from penstock_gateway.service import Service

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
    """The routes of this module, all to one endpoint."""
    endpoint = ScoreEndpoint(service)
    return [operation.route(endpoint) for operation in SCORE]
