"""GET /openapi.json: made from the operations of all routes and their structs, with an example of
each body that works unchanged."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.version import __version__
from penstock_gateway.http.operations import REQUEST_HEADERS, Operation, OperationRoute

OPERATION = Operation(
    method="GET", path="/openapi.json", summary="This document", tag="operations", reply=dict
)

_WORDS = {
    400: "The request is not valid; the error names the field, its value and what is allowed.",
    401: "The API key is missing or unknown.",
    403: "The API key isn't allowed to do this, or to use this model.",
    404: "No such path or model.",
    405: "The path doesn't support this method.",
    409: "The current state doesn't allow it.",
    408: "The deadline passed, or the body did not arrive in time.",
    413: "The body is too large.",
    415: "The body's content-type is not application/json.",
    429: "The API key's limit is exhausted; see Retry-After.",
    431: "The request's headers are too large.",
    500: "Internal server error.",
    503: "Overloaded, shutting down, or without an engine core; see Retry-After.",
}
_RETRY = {
    "retry-after": {"description": "Whole seconds.", "schema": {"type": "integer", "minimum": 1}}
}


def route(others: Iterable[Operation], *, skips_unknown: bool = False) -> OperationRoute:
    """The route, which describes `others` and itself; the document is made when first asked for.

    skips_unknown: unknown fields of bodies are no errors.
    """
    operations = [each for each in (*others, OPERATION) if each.described]
    made = functools.cache(
        lambda: msgspec.json.encode(document(operations, skips_unknown=skips_unknown))
    )

    async def openapi(request: Request) -> Response:
        return Response(made(), media_type="application/json")

    return OPERATION.route(openapi)


def document(operations: Iterable[Operation], *, skips_unknown: bool = False) -> dict[str, Any]:
    """The OpenAPI 3.1 document. skips_unknown: unknown fields of bodies are no errors."""
    operations = list(operations)
    types = {id(kind): kind for each in operations for kind in (each.body, each.reply) if kind}
    types |= {id(each.errors_as.reply): each.errors_as.reply for each in operations}
    schemas, components = msgspec.json.schema_components(
        types.values(), ref_template="#/components/schemas/{name}"
    )
    if skips_unknown:
        for schema in components.values():
            schema.pop("additionalProperties", None)
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {}
    for each in operations:
        paths.setdefault(each.template, {})[each.method.lower()] = _operation(each, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": __version__,
            "description": "OpenAI's endpoints, and fields beyond them under vLLM's names.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, if the server has a key file.",
                }
            },
        },
    }


def _operation(operation: Operation, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "tags": [operation.tag],
        "parameters": _parameters(operation),
        "responses": {
            "200": _success(operation, known),
            **{str(status): _error(operation, status, known) for status in operation.errors},
        },
        # An empty requirement says that it may be called without a key: where there are none.
        "security": [] if operation.access == "open" else [{"key": []}, {}],
    }
    if operation.body is not None:
        content: dict[str, Any] = {"schema": known[id(operation.body)]}
        example = example_of(operation)
        if example is not None:
            content["example"] = example
        made["requestBody"] = {"required": True, "content": {operation.body_type: content}}
    return made


def example_of(operation: Operation) -> Mapping[str, Any] | None:
    """Returns a body of the operation that works unchanged; None: there is no example."""
    return EXAMPLES.get(operation.path) if operation.example is None else operation.example


def _operation_id(operation: Operation) -> str:
    words = operation.template.replace("{", "").replace("}", "")
    return operation.method.lower() + "".join(
        f"_{word}" for word in words.replace("-", "_").replace(".", "_").split("/") if word
    )


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    of_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in operation.parameters
    ]
    of_head = [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": REQUEST_HEADERS[name][0],
            "schema": REQUEST_HEADERS[name][1],
        }
        for name in ("x-request-id", *operation.headers)
    ]
    of_query = [
        {"name": name, "in": "query", "required": False, "description": words, "schema": schema}
        for name, (words, schema) in operation.query.items()
    ]
    return of_path + of_query + of_head


_LIMITS = {
    f"x-ratelimit-{part}-{what}": {
        "description": f"{words}, if the API key has such a limit.",
        "schema": {"type": kind},
    }
    for what in ("requests", "tokens")
    for part, words, kind in (
        ("limit", f"{what.title()} a minute", "integer"),
        ("remaining", f"{what.title()} left", "integer"),
        (
            "reset",
            "Time until the full limit is available again, as in 1m5s; in a 429 for this limit, "
            "the same time as Retry-After",
            "string",
        ),
    )
}


def _success(operation: Operation, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    schema = known[id(operation.reply)] if operation.reply is not None else {"type": "string"}
    content: dict[str, Any] = {operation.media_type: {"schema": schema}}
    words = "The reply."
    if operation.streams:
        content[operation.stream_type] = {}  # What a schema would describe are its events.
        words = "The reply; if streamed, its chunks."
    headers = _request_id() | (_LIMITS if operation.counted else {})
    return {"description": words, "content": content, "headers": headers}


def _error(operation: Operation, status: int, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {
        "description": _WORDS[status],
        "content": {"application/json": {"schema": known[id(operation.errors_as.reply)]}},
        "headers": _request_id()
        | (_RETRY if status in (429, 503) else {})
        | (_LIMITS if status == 429 else {}),
    }


def _request_id() -> dict[str, Any]:
    return {"x-request-id": {"description": "The request's id.", "schema": {"type": "string"}}}


_DOCUMENTS = ["A young cat naps.", "The market fell."]
_SCORE = {"text_1": "A kitten sleeps.", "text_2": _DOCUMENTS}
_RERANK = {"query": "cats", "documents": _DOCUMENTS, "top_n": 1}
_CHAT = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 32,
}
_LLAMA = {"prompt": "The capital of France is", "n_predict": 8}

EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/batches": {"input_file_id": "file-ID", "endpoint": "/v1/completions"},
    "/v1/messages/batches": {
        "requests": [
            {
                "custom_id": "1",
                "params": {
                    "max_tokens": 32,
                    "messages": [{"role": "user", "content": "Name a river in Europe."}],
                },
            }
        ]
    },
    "/v1/load_lora_adapter": {"lora_name": "sql", "lora_path": "sql"},
    "/v1/unload_lora_adapter": {"lora_name": "sql"},
    "/collective_rpc": {"method": "memory"},
    "/update_weights_from_disk": {"model_path": "checkpoint"},
    "/v1/chat/completions": _CHAT,
    "/chat/completions": _CHAT,
    "/v1/completions": {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
    "/v1/fim/completions": {"prompt": "The capital of France is", "max_tokens": 8},
    "/infill": {"input_prefix": "The capital of France is", "n_predict": 8},
    "/v1/responses/compact": {"input": "Name a river in Europe."},
    "/v1/responses/input_tokens": {"input": "Name a river in Europe."},
    "/v1/conversations": {"items": [{"role": "user", "content": "Name a river in Europe."}]},
    "/v1/conversations/{id}": {"metadata": {"topic": "rivers"}},
    "/v1/conversations/{id}/items": {"items": [{"role": "user", "content": "And another."}]},
    "/v1/responses": {"input": "Name a river in Europe.", "max_output_tokens": 32},
    "/v1/messages": {
        "max_tokens": 32,
        "messages": [{"role": "user", "content": "Name a river in Europe."}],
    },
    "/v1/messages/count_tokens": {
        "messages": [{"role": "user", "content": "Name a river in Europe."}]
    },
    "/api/chat": {
        "messages": [{"role": "user", "content": "Name a river in Europe."}],
        "options": {"num_predict": 32},
        "stream": False,
    },
    "/api/generate": {
        "prompt": "Name a river in Europe.",
        "options": {"num_predict": 32},
        "stream": False,
    },
    "/api/embed": {"input": ["A kitten sleeps.", "A young cat naps."]},
    "/api/embeddings": {"prompt": "A kitten sleeps."},
    "/api/show": {},
    "/api/pull": {},
    "/tokenize": {"prompt": "The capital of France is"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/decode": {"ids": [1, 2, 3]},
    "/completion": _LLAMA,
    "/completions": _LLAMA,
    "/apply-template": {"messages": [{"role": "user", "content": "Name a river in Europe."}]},
    "/v1/embeddings": {"input": ["A kitten sleeps.", "A young cat naps."]},
    "/embedding": {"content": "A kitten sleeps."},
    "/embeddings": {"content": "A kitten sleeps."},
    "/pooling": {"input": "A kitten sleeps."},
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/rerank": _RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/reranking": _RERANK,
    "/v1/reranking": _RERANK,
    "/classify": {"input": ["The film was wonderful.", "I fell asleep."]},
}
