"""What the control operations have in common: a query string and a small reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.http.operations import Operation, Parameters, asked

if TYPE_CHECKING:
    from penstock.client import EngineClient
    from penstock_gateway.service import Service

OpenRequests = Literal["abort", "keep"]
"""What becomes of open requests."""

MODEL: tuple[str, dict[str, Any]] = (
    "The model, if the server has several.",
    {"type": "string"},
)


def model_operation(
    method: Literal["GET", "POST"],
    path: str,
    summary: str,
    reply: type[msgspec.Struct],
    *,
    query: Parameters | None = None,
) -> Operation:
    """An operator's operation on one model. query: its parameters besides `model`, which selects
    the model."""
    return Operation(
        method=method,
        path=path,
        summary=summary,
        tag="operations",
        reply=reply,
        access="admin",
        statuses=(404,),
        query={**(query or {}), "model": MODEL},
    )


def asked_client(service: Service, request: Request) -> EngineClient:
    """Client of the model that `model` selects. Raises as `ModelRegistry.ask` does."""
    return service.models.ask(asked(request, "model")).backend.client


def mode_option(until: str) -> tuple[str, dict[str, Any]]:
    """What becomes of open requests. until: when they go on."""
    return (
        "What happens to open requests: abort ends them with the output so far; keep lets them "
        f"continue {until}.",
        {"type": "string", "enum": list(get_args(OpenRequests)), "default": "abort"},
    )


def aborts(request: Request) -> bool:
    """Whether open requests end."""
    return asked(request, "mode") == "abort"


def replying(
    answer: Callable[[Request], Awaitable[msgspec.Struct]],
) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that sends what is answered."""

    async def reply(request: Request) -> Response:
        told = msgspec.json.encode(await answer(request))
        return Response(told, media_type="application/json")

    return reply
