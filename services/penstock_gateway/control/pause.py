"""POST /pause and /resume, GET /is_paused, as in vLLM. `model` selects one of several models."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request

from penstock_gateway.control.replying import MODEL, aborts, mode_option, replying
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.service import Service


class PauseReply(msgspec.Struct, frozen=True):
    """What has been done."""

    status: Literal["paused", "resumed"]


class PausedReply(msgspec.Struct, frozen=True):
    """Whether nothing is computed until somebody resumes it."""

    is_paused: bool


PAUSE = Operation(
    method="POST",
    path="/pause",
    summary="Pause computation; the reply comes when no step is running",
    tag="operations",
    reply=PauseReply,
    access="admin",
    statuses=(404,),
    query={
        "mode": mode_option("when the model is resumed"),
        "clear_cache": (
            "Accepted for compatibility with vLLM; no effect, because KV blocks are identified by "
            "what they were computed from.",
            {"type": "boolean"},
        ),
        "model": MODEL,
    },
)
RESUME = Operation(
    method="POST",
    path="/resume",
    summary="Resume computation",
    tag="operations",
    reply=PauseReply,
    access="admin",
    statuses=(404,),
    query={"model": MODEL},
)
IS_PAUSED = Operation(
    method="GET",
    path="/is_paused",
    summary="Whether the model is paused",
    tag="operations",
    reply=PausedReply,
    access="admin",
    statuses=(404,),
    query={"model": MODEL},
)


def routes(service: Service) -> list[OperationRoute]:
    """The three routes. None of them starts a model that isn't there."""

    async def pause(request: Request) -> msgspec.Struct:
        abort = aborts(request)
        asked = service.models.ask(request.query_params.get("model"))
        await asked.backend.client.set_paused(True, abort=abort)
        return PauseReply("paused")

    async def resume(request: Request) -> msgspec.Struct:
        asked = service.models.ask(request.query_params.get("model"))
        await asked.backend.client.set_paused(False)
        return PauseReply("resumed")

    async def is_paused(request: Request) -> msgspec.Struct:
        asked = service.models.ask(request.query_params.get("model"))
        return PausedReply(asked.backend.client.paused)

    return [
        PAUSE.route(replying(PAUSE, pause)),
        RESUME.route(replying(RESUME, resume)),
        IS_PAUSED.route(replying(IS_PAUSED, is_paused)),
    ]
