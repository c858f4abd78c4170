"""POST /rerank, in the formats of Jina's and Cohere's APIs, and of Text Embeddings Inference."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from penstock.errors import InvalidRequest
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.cutting import Direction, read_options
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of
from penstock_gateway.pooling.fields import Flag, PoolFields, PoolUsage, Text, Whole
from penstock_gateway.pooling.scored import (
    Document,
    Scored,
    scored_inputs,
    scored_of,
)
from penstock_gateway.pooling.scoring import ScoreOptions, scores
from penstock_gateway.pooling.shortened import shortened
from penstock_gateway.request.input_texts import texts_of
from penstock_gateway.service import Service


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


def routes(service: Service) -> list[OperationRoute]:
    """The routes of this module, all to one endpoint."""
    endpoint = Rerank(service)
    return [operation.route(endpoint) for operation in RERANK]
