"""GET /ping, POST /invocations, and /adapters: what Amazon SageMaker asks of a container.

SageMaker knows one path to infer by. So an invocation is a body of any of the other endpoints, and
goes to the one whose fields it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock.protocol.to_frontend import Welcome
from penstock_gateway.adapters.endpoint import LOAD, UNLOAD, load_adapter, say, unload_adapter
from penstock_gateway.chat.endpoint import ChatCompletions
from penstock_gateway.completions.endpoint import Completions
from penstock_gateway.http.errors import listed
from penstock_gateway.http.operations import SIGNED_HEADERS, OperationRoute, posting
from penstock_gateway.pooling.classify import Classify
from penstock_gateway.pooling.embeddings import Embeddings
from penstock_gateway.pooling.pooling import PoolingEndpoint
from penstock_gateway.pooling.rerank import Rerank
from penstock_gateway.pooling.score import ScoreEndpoint
from penstock_gateway.request.endpoint import JsonEndpoint, with_body
from penstock_gateway.request.forwarding import named_model, read_fields
from penstock_gateway.service import Service

ADAPTER = b"x-amzn-sagemaker-adapter-identifier"
"""The header by which a request names its adapter."""

Body = dict[str, Any]
INVOCATIONS = posting(
    "/invocations",
    "Infer by a body of chat or completions, or of a pooling endpoint (SageMaker)",
    Body,
    Body,
    streams=True,
    headers=SIGNED_HEADERS,
    example={
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 32,
    },
)
_KINDS: dict[str, Callable[[Service], ASGIApp]] = {
    "chat": ChatCompletions,
    "completions": Completions,
    "embeddings": Embeddings,
    "classify": Classify,
    "rerank": Rerank,
    "score": ScoreEndpoint,
    "pooling": PoolingEndpoint,
}
_SCORED = ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")


def kind_of(fields: Mapping[str, Any], welcome: Welcome) -> str:
    """Which of _KINDS has these fields, of those that the model has. Raises InvalidRequest."""
    if welcome.pooling is None:
        for name, kind in (("messages", "chat"), ("prompt", "completions")):
            if name in fields:
                return kind
        raise _of_no_kind(fields, ["messages", "prompt"])
    if "query" in fields and "documents" in fields:
        return "rerank"
    if any(name in fields for name in _SCORED):
        return "score"
    if "input" not in fields and "messages" not in fields:
        raise _of_no_kind(fields, ["input", "messages", "query with documents", "text_1"])
    if "task" not in fields:
        for task, kind in (("embed", "embeddings"), ("classify", "classify")):
            if task in welcome.pooling_tasks:
                return kind
    return "pooling"


def _of_no_kind(fields: Mapping[str, Any], allowed: list[str]) -> InvalidRequest:
    given = listed(list(fields)) if fields else "no field"
    return InvalidRequest(
        f"the request has {given}; with this model it must have one of {', '.join(allowed)}",
        code="missing_required_parameter",
    )


class Invocations:
    """Finds the endpoint and hands the request on, whole. The endpoints are made when they are
    first asked."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._made: dict[str, ASGIApp] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        body, fields = await read_fields(service, scope, receive)
        adapter = dict(scope["headers"]).get(ADAPTER)
        if adapter is not None:
            fields["model"] = msgspec.Raw(msgspec.json.encode(adapter.decode("latin-1")))
            body = msgspec.json.encode(fields)
        async with service.models.using(named_model(fields)) as asked:
            kind = kind_of(fields, asked.engine.welcome)
        if kind not in self._made:
            self._made[kind] = _KINDS[kind](service)
        await self._made[kind](scope, with_body(body, receive), send)


class NewAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """lora_name and lora_path of /v1/load_lora_adapter. preload, pin: SageMaker's, without
    effect."""

    name: str
    src: str
    preload: bool | None = None
    pin: bool | None = None


ADD_ADAPTER = replace(
    LOAD,
    path="/adapters",
    summary="Load an adapter (SageMaker)",
    body=NewAdapter,
    example={"name": "sql", "src": "sql"},
)
REMOVE_ADAPTER = replace(
    UNLOAD,
    method="DELETE",
    path="/adapters/{name}",
    summary="Unload an adapter (SageMaker)",
    body=None,
    statuses=(403, 404),
)


class AddAdapter(JsonEndpoint[NewAdapter]):
    """Answers as /v1/load_lora_adapter does."""

    request_type = NewAdapter
    takes_long_bodies = False

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        await say(send, await load_adapter(self._service, request.name, request.src))


class RemoveAdapter:
    """Answers as /v1/unload_lora_adapter does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await say(send, unload_adapter(self._service, scope["path_params"]["name"]))


def routes(service: Service) -> list[OperationRoute]:
    """The routes of invocations and of adapters; /ping is a health check like the others."""
    return [
        INVOCATIONS.route(Invocations(service)),
        ADD_ADAPTER.route(AddAdapter(service)),
        REMOVE_ADAPTER.route(RemoveAdapter(service)),
    ]
