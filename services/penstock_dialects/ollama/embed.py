"""POST /api/embed, and its older form /api/embeddings."""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope

from penstock.client.pool_request import PoolResult
from penstock.errors import InvalidRequest
from penstock.protocol.common import Pooling
from penstock.request.pooling_params import check_dimensions
from penstock_dialects.ollama.request import ERRORS
from penstock_gateway.http.operations import Operation, OperationRoute, posting
from penstock_gateway.pooling.embeddings import vector_list
from penstock_gateway.pooling.endpoint import Call, PoolEndpoint
from penstock_gateway.pooling.fields import Flag, PoolFields, Text, Whole
from penstock_gateway.request.input_texts import texts_of
from penstock_gateway.service import Service


class EmbedFields(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """options, keep_alive: without effect."""

    options: dict[str, Any] | None = None
    keep_alive: Any = None


class EmbedRequest(EmbedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """truncate: texts that are too long are cut, unless it is false."""

    input: str | list[str] | None = None
    truncate: Flag = None
    dimensions: Whole = None


class EmbedReply(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OldEmbedRequest(EmbedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: Text = None


class OldEmbedReply(msgspec.Struct, frozen=True):
    embedding: list[float]


Asked = TypeVar("Asked", bound=EmbedFields)


class OllamaEmbedding(PoolEndpoint[Asked], Generic[Asked]):
    takes_forms_type = True
    ignores_unknown = True
    id_prefix = "embd"

    async def read(self, scope: Scope, receive: Receive) -> Asked:
        request = await super().read(scope, receive)
        if getattr(request, "truncate", None) is False or request.truncate_prompt_tokens:
            return request
        return msgspec.structs.replace(request, truncate_prompt_tokens=-1)

    async def vectors(
        self, call: Call, texts: list[str], dimensions: int | None = None
    ) -> list[PoolResult]:
        """One for each text. Raises InvalidRequest."""
        pooling = call.engine.welcome.pooling
        if pooling is not None:
            check_dimensions(dimensions, pooling)
        return await call.pool(
            await call.read(list(texts)), Pooling("embed", dimensions=dimensions)
        )


class OllamaEmbed(OllamaEmbedding[EmbedRequest]):
    request_type = EmbedRequest

    async def answer(self, request: EmbedRequest, call: Call) -> EmbedReply:
        begun = time.perf_counter_ns()
        if request.input is None:
            raise InvalidRequest("input is missing", param="input")
        texts = texts_of("input", request.input)
        results = await self.vectors(call, texts, request.dimensions)
        return EmbedReply(
            model=call.model,
            embeddings=await vector_list(results, call.splices, lambda index, vector: vector),
            total_duration=time.perf_counter_ns() - begun,
            prompt_eval_count=sum(result.prompt_tokens for result in results),
        )


class OldOllamaEmbed(OllamaEmbedding[OldEmbedRequest]):
    request_type = OldEmbedRequest

    async def answer(self, request: OldEmbedRequest, call: Call) -> OldEmbedReply:
        if not request.prompt:
            raise InvalidRequest("prompt is missing or empty", param="prompt")
        [result] = await self.vectors(call, [request.prompt])
        return OldEmbedReply(result.values())


def _operation(path: str, body: type, reply: type) -> Operation:
    return posting(
        path,
        "Create embeddings (Ollama)",
        body,
        reply,
        tag="pooling",
        headers=("x-deadline-ms",),
        traced_as="embeddings",
        errors_as=ERRORS,
    )


EMBED = _operation("/api/embed", EmbedRequest, EmbedReply)
OLD_EMBED = _operation("/api/embeddings", OldEmbedRequest, OldEmbedReply)


def routes(service: Service) -> list[OperationRoute]:
    """The routes of both APIs for embeddings."""
    return [EMBED.route(OllamaEmbed(service)), OLD_EMBED.route(OldOllamaEmbed(service))]
