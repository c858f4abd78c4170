"""GET /openapi.json: made from the structs that decode requests and encode replies."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from penstock_gateway.errors import ErrorReply
from penstock_gateway.openai.chat_reply import ChatCompletion
from penstock_gateway.openai.chat_request import ChatRequest
from penstock_gateway.openai.completion_reply import TextCompletion
from penstock_gateway.openai.completion_request import CompletionRequest
from penstock_gateway.openai.responses_reply import Response
from penstock_gateway.openai.responses_request import ResponsesRequest

_GENERATING = {
    "/v1/chat/completions": ("Answer a conversation", ChatRequest, ChatCompletion),
    "/v1/completions": ("Continue prompts", CompletionRequest, TextCompletion),
    "/v1/responses": ("Answer a conversation, statelessly", ResponsesRequest, Response),
}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; made on the first call."""
    if app.openapi_schema is None:
        app.openapi_schema = _build(app)
    return app.openapi_schema


def _build(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    structs = [ErrorReply, *(s for _, *pair in _GENERATING.values() for s in pair)]
    _, components = msgspec.json.schema_components(
        structs, ref_template="#/components/schemas/{name}"
    )
    schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
    for path, (summary, body, reply) in _GENERATING.items():
        schema["paths"][path] = {"post": _operation(summary, body, reply)}
    return schema


def _operation(summary: str, body: type, reply: type) -> dict[str, Any]:
    return {
        "summary": summary,
        "tags": ["generate"],
        "requestBody": {"required": True, "content": _json_of(body)},
        "responses": {
            "200": {
                "description": "The reply; with stream: true, server-sent events of its chunks.",
                "content": _json_of(reply) | {"text/event-stream": {}},
            },
            "default": {"description": "An error.", "content": _json_of(ErrorReply)},
        },
    }


def _json_of(struct: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{struct.__name__}"}}}
