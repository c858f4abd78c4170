"""POST /rerank, /v1/rerank and /v2/rerank: the formats of Jina's and Cohere's APIs."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from penstock.errors import InvalidRequest
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of
from penstock_gateway.pooling.fields import Flag, PoolFields, PoolUsage, Whole
from penstock_gateway.pooling.inputs import texts_of
from penstock_gateway.pooling.scoring import scores
from penstock_gateway.service import Service


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


OPERATIONS = [
    posting(
        path, "Rank documents by relevance to a query", RerankRequest, RerankReply, tag="pooling",
        headers=("x-deadline-ms",),
    )
    for path in ("/rerank", "/v1/rerank", "/v2/rerank")
]  # fmt: skip


def routes(service: Service) -> list[OperationRoute]:
    endpoint = Rerank(service)
    return [operation.route(endpoint) for operation in OPERATIONS]
