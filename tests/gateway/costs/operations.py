"""The operations that take a body, each once, and the models that answer it."""

from __future__ import annotations

from functools import cache
from typing import Any

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.http.openapi import example_of
from penstock_gateway.http.operations import Operation, OperationRoute

FORMS = "multipart/form-data"
SCORING = ("score", "rerank", "reranking")
CLASSES = ("/classify", "/predict")
FILLING_IN = ("/infill", "/v1/fim/completions")
SPARSE = ("/embed_sparse",)


@cache
def operations() -> tuple[Operation, ...]:
    """Those that post JSON; of paths with one handler and one body the first."""
    app = create_app([], GatewayConfig())
    app.state.service.media.close()
    seen: set[Any] = set()
    found = []
    for route in app.routes:
        if not isinstance(route, OperationRoute) or route.operation.body is None:
            continue
        operation = route.operation
        handler = route.endpoint
        kind = type(handler) if not hasattr(handler, "__name__") else handler
        key = (kind, operation.body, operation.controls)
        if operation.body_type != FORMS and key not in seen:
            seen.add(key)
            found.append(operation)
    return tuple(found)


def example(operation: Operation) -> dict[str, Any]:
    """A body that works, with short answers."""
    made = dict(example_of(operation))
    for name in ("max_tokens", "n_predict", "max_output_tokens"):
        if name in made:
            made[name] = 4
    if "options" in made:
        made["options"] = {"num_predict": 4}
    return made


def path_of(operation: Operation) -> str:
    """A path with something in the place of each parameter."""
    return operation.path.replace("{id}", "conv_0")


def models_of(operation: Operation) -> tuple[str, ...]:
    """The models of testing.costs.models that it is asked with, the first mostly."""
    path = operation.path
    if path in CLASSES:
        return ("pairs",)
    if path in SPARSE:
        return ("sparse",)
    if path.rsplit("/", 1)[-1] in SCORING:
        return ("pairs", "vectors")
    if operation.tag == "pooling":
        return ("vectors",)
    if path in FILLING_IN:
        return ("qwen",)
    return ("llama", "qwen", "gemma")


@cache
def by_path() -> dict[str, Operation]:
    return {each.path: each for each in operations()}
