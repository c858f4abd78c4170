"""POST /v2/embed, in the format of Cohere's API.

Source of the two packed types: sentence-transformers' `quantize_embeddings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from penstock.client.pool_request import PoolResult, check_task, pooling_model
from penstock.errors import InvalidRequest
from penstock.protocol.common import Pooling
from penstock.request.pooling_params import check_dimensions
from penstock_gateway.generate.chunked_reply import paced
from penstock_gateway.http.errors import clip
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.embeddings import NUMBERS_PER_TOKEN, Packing, vector_list
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint, usage_of
from penstock_gateway.pooling.fields import PoolFields, Whole
from penstock_gateway.pooling.scored import Document, Scored, scored_inputs
from penstock_gateway.pooling.scoring import each_vector
from penstock_gateway.request.input_texts import texts_of
from penstock_gateway.service import Service

InputType = Literal["search_document", "search_query", "classification", "clustering", "image"]
ServedType = Literal["float", "base64", "binary", "ubinary"]
Packed = Literal["binary", "ubinary"]
_INPUTS = ("texts", "images", "inputs")
_NAMES = {"dimensions": "output_dimension", "truncate_prompt_tokens": "truncate END"}
"""What is said in place of other endpoints' names of fields."""


class CohereEmbedRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """texts, images (data: URIs) or inputs (objects with `content`, as in a chat): one of them.
    embedding_types: of the reply, absent: float. base64 is that of little-endian float32; binary
    and ubinary pack the signs of eight numbers into one, from -128 to 127 or 0 to 255.
    output_dimension: numbers kept of each vector.  max_tokens: of each text, absent: as many as the
    model takes.  truncate: NONE refuses longer texts; absent, or END: they lose their end; START:
    their beginning.
    input_type: without effect."""

    texts: list[str] | None = None
    images: list[str] | None = None
    inputs: list[Document] | None = None
    input_type: InputType | None = None
    embedding_types: list[str] | None = None
    output_dimension: Whole = None
    max_tokens: Whole = None
    truncate: Literal["NONE", "START", "END"] | None = None


class EmbeddingsByType(msgspec.Struct, frozen=True):
    """A vector for each input, in each of the types asked for."""

    floats: list[list[float]] | UnsetType = msgspec.field(default=UNSET, name="float")
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET


class APIVersion(msgspec.Struct, frozen=True):
    version: str = "2"


class BilledUnits(msgspec.Struct, frozen=True):
    """input_tokens: of all inputs, as they were computed, those of pictures included, so that
    image_tokens are 0."""

    input_tokens: int
    image_tokens: int = 0


class CohereMeta(msgspec.Struct, frozen=True):
    billed_units: BilledUnits
    api_version: APIVersion = APIVersion()


class CohereEmbedReply(
    msgspec.Struct, frozen=True, tag_field="response_type", tag="embeddings_by_type"
):
    """texts: those of the request."""

    id: str
    embeddings: EmbeddingsByType
    texts: list[str]
    meta: CohereMeta


class CohereEmbed(PoolEndpoint[CohereEmbedRequest]):
    request_type = CohereEmbedRequest
    id_prefix = "embd"

    async def answer(self, request: CohereEmbedRequest, call: Call) -> CohereEmbedReply:
        check_task("embed", call.engine.welcome)
        types = _types(request.embedding_types)
        dimensions = _dimensions(request.output_dimension, types, call)
        given = _given(request)
        _set_limit(call, request, given)
        asked = Pooling("embed", dimensions=dimensions)
        try:
            results = await each_vector(call, given, asked)
        except InvalidRequest as error:
            raise _in_the_bodys_terms(error, request) from None
        tokens = usage_of(results).prompt_tokens
        return CohereEmbedReply(
            call.id,
            await _by_type(results, types, call),
            request.texts or [],
            CohereMeta(BilledUnits(tokens)),
        )


def _types(asked: list[str] | None) -> list[ServedType]:
    """Raises InvalidRequest for none, and for one that isn't served: int8 and uint8 need ranges of
    a model's numbers, which its files don't have."""
    served: dict[str, ServedType] = {each: each for each in get_args(ServedType)}
    found = [served.get(each) for each in dict.fromkeys(["float"] if asked is None else asked)]
    if not found or None in found:
        raise InvalidRequest(
            f"embedding_types is {clip(asked)}; allowed are one or more of {', '.join(served)}",
            param="embedding_types",
            code="unsupported_value",
        )
    return [each for each in found if each is not None]


def _dimensions(asked: int | None, types: Sequence[ServedType], call: Call) -> int | None:
    """Raises InvalidRequest for a length that vectors can't be cut to, or that can't be packed."""
    pooling = pooling_model(call.engine.welcome)
    try:
        check_dimensions(asked, pooling)
    except InvalidRequest as error:
        raise error.renamed(lambda path: _NAMES.get(path, path)) from None
    length = asked or pooling.size
    if length % 8 and any(each in get_args(Packed) for each in types):
        raise InvalidRequest(
            f"vectors of {length} numbers can't be packed; binary and ubinary need a multiple of 8",
            param="output_dimension",
        )
    return asked


def _named(request: CohereEmbedRequest) -> list[str]:
    return [name for name in _INPUTS if getattr(request, name) is not None]


def _given(request: CohereEmbedRequest) -> list[Scored]:
    """Raises InvalidRequest for several lists, or none."""
    named = _named(request)
    if len(named) != 1:
        raise InvalidRequest(
            f"{' and '.join(named) or 'none'} of texts, images and inputs are given; one of them "
            "must be",
            param=named[0] if named else "texts",
            code=None if named else "missing_required_parameter",
        )
    if request.texts is not None:
        return scored_inputs("texts", texts_of("texts", request.texts))
    if request.images is not None:
        return scored_inputs("images", [Document(image=each) for each in request.images])
    return scored_inputs("inputs", request.inputs or [])


def _in_the_bodys_terms(error: InvalidRequest, request: CohereEmbedRequest) -> InvalidRequest:
    """What is said of the one list that was given, in other endpoints' word for it."""
    if error.param != "input":
        return error
    names = {**_NAMES, "input": _named(request)[0]}
    return error.renamed(lambda path: names.get(path, path))


def _set_limit(call: Call, request: CohereEmbedRequest, given: Sequence[Scored]) -> None:
    """Texts alone are cut: a conversation has no end that could be missed. Raises
    InvalidRequest."""
    longest = call.engine.welcome.limits.max_model_len
    most = request.max_tokens
    if most is not None and most < 1:
        raise InvalidRequest(
            f"max_tokens is {most}; it must be a whole number ≥ 1", param="max_tokens"
        )
    if request.truncate_prompt_tokens is not None:
        if most is not None or request.truncate is not None:
            raise InvalidRequest(
                "truncate_prompt_tokens is given beside max_tokens or truncate, which say the same;"
                " allowed: one",
                param="truncate_prompt_tokens",
            )
        return
    if request.truncate == "NONE" and most is not None:
        raise InvalidRequest(
            "max_tokens is given with truncate NONE, which cuts nothing", param="max_tokens"
        )
    if request.truncate != "NONE" and all(each.plain for each in given):
        call.limit = min(most or longest, longest)
        call.side = "left" if request.truncate == "START" else "right"


async def _by_type(
    results: Sequence[PoolResult], types: Sequence[ServedType], call: Call
) -> EmbeddingsByType:
    made: dict[str, Any] = {}
    for each in types:
        if each == "binary" or each == "ubinary":
            made[each] = await _packed(results, each)
        else:
            made["floats" if each == "float" else each] = await vector_list(
                results,
                call.splices,
                lambda index, vector: vector,
                base64=Packing() if each == "base64" else None,
            )
    return EmbeddingsByType(**made)


async def _packed(results: Sequence[PoolResult], kind: Packed) -> list[list[int]]:
    lowest = 128 if kind == "binary" else 0
    made = []
    async with paced(sum(result.size for result in results) // NUMBERS_PER_TOKEN) as pace:
        for result in results:
            signs = "".join("1" if number > 0 else "0" for number in result.flat())
            octets = int(signs, 2).to_bytes(len(signs) // 8, "big")
            made.append([octet - lowest for octet in octets])
            await pace.rest()
    return made


OPERATION = posting(
    "/v2/embed",
    "Embed texts (Cohere)",
    CohereEmbedRequest,
    CohereEmbedReply,
    tag="pooling",
    headers=("x-deadline-ms",),
    traced_as="embeddings",
    example={"texts": ["A kitten sleeps."]},
)


def routes(service: Service) -> list[OperationRoute]:
    return [OPERATION.route(CohereEmbed(service))]
