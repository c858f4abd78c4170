"""POST /embedding, llama-server's own: texts in, a list of their vectors out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec

from penstock.client.pool_request import check_task
from penstock.errors import InvalidRequest
from penstock.protocol.common import Pooling
from penstock_dialects.llamacpp.completion import PromptText
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.pooling.embeddings import vector_list
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint
from penstock_gateway.pooling.fields import Given, InputField, PoolFields, Whole, inputs_of
from penstock_gateway.request.dialect import moved
from penstock_gateway.service import Service

EUCLIDEAN, NONE = 2, -1
"""The norms of embd_normalize that are made: to length 1, and as the model gives them."""

Content = str | list[str | int | list[int] | PromptText] | PromptText | None


class LlamaEmbeddingRequest(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """content, or input: a text, a list of token ids, or a list of texts and of such lists; a
    text may stand in an object, as `prompt_string`.  embd_normalize: 2, to length 1, or -1, as the
    model gives them; default: 2."""

    content: Content = None
    input: Content = None
    embd_normalize: Whole = None


class LlamaEmbedding(msgspec.Struct, frozen=True):
    """embedding: a list of one vector."""

    index: int
    embedding: list[list[float]]


class LlamaEmbeddings(PoolEndpoint[LlamaEmbeddingRequest]):
    request_type = LlamaEmbeddingRequest
    id_prefix = "embd"

    async def answer(self, request: LlamaEmbeddingRequest, call: Call) -> Any:
        check_task("embed", call.engine.welcome)
        norm = EUCLIDEAN if request.embd_normalize is None else request.embd_normalize
        if norm not in (EUCLIDEAN, NONE):
            raise InvalidRequest(
                f"embd_normalize is {norm}; allowed: {EUCLIDEAN} (to length 1) and {NONE} (as the "
                "model gives them)",
                param="embd_normalize",
                code="unsupported_value",
            )
        inputs = await call.read(_inputs(request))
        results = await call.pool(inputs, Pooling("embed", normalize=norm == EUCLIDEAN))
        return await vector_list(
            results, call.splices, lambda index, vector: LlamaEmbedding(index, [vector])
        )


def _inputs(request: LlamaEmbeddingRequest) -> list[Given]:
    """Texts and token ids, none empty. Raises InvalidRequest."""
    if (request.content is None) == (request.input is None):
        raise InvalidRequest("give either content or input", param="content")
    name = "input" if request.content is None else "content"
    given = request.input if request.content is None else request.content
    texts: InputField
    if isinstance(given, list):
        texts = [_text(each, name) if isinstance(each, PromptText) else each for each in given]
    else:
        texts = _text(cast("str | PromptText", given), name)
    try:
        return inputs_of(texts)
    except InvalidRequest as error:
        raise error.renamed(lambda path: moved(path, "input", name)) from None


def _text(given: str | PromptText, name: str) -> str:
    if isinstance(given, str):
        return given
    if given.multimodal_data:
        raise InvalidRequest(
            f"{name}.multimodal_data is not supported here: pictures stand in the messages of "
            "/v1/embeddings; allowed: [] or null",
            param=f"{name}.multimodal_data",
            code="unsupported_value",
        )
    return given.prompt_string


OPERATION = posting(
    "/embedding",
    "Embed texts (llama.cpp)",
    LlamaEmbeddingRequest,
    list[LlamaEmbedding],
    tag="pooling",
    headers=("x-deadline-ms",),
    traced_as="embeddings",
)


def routes(service: Service) -> list[OperationRoute]:
    """The route, by both of its names."""
    endpoint = LlamaEmbeddings(service)
    return [
        replace(OPERATION, path=path).route(endpoint) for path in (OPERATION.path, "/embeddings")
    ]
