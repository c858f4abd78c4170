"""POST /pause and /resume, GET /is_paused, as in vLLM. `model` selects one of several models."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request

from penstock_gateway.control.replying import (
    aborts,
    asked_client,
    mode_option,
    model_operation,
    replying,
)
from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.service import Service


class PauseReply(msgspec.Struct, frozen=True):
    """What has been done."""

    status: Literal["paused", "resumed"]


class PausedReply(msgspec.Struct, frozen=True):
    """Whether nothing is computed until somebody resumes it."""

    is_paused: bool


PAUSE = model_operation(
    "POST",
    "/pause",
    "Pause computation; the reply comes when no step is running",
    PauseReply,
    query={
        "mode": mode_option("when the model is resumed"),
        "clear_cache": (
            "Accepted for compatibility with vLLM; no effect, because KV blocks are identified by "
            "what they were computed from.",
            {"type": "boolean"},
        ),
    },
)
RESUME = model_operation("POST", "/resume", "Resume computation", PauseReply)
IS_PAUSED = model_operation("GET", "/is_paused", "Whether the model is paused", PausedReply)


def routes(service: Service) -> list[OperationRoute]:
    """The three routes. None of them starts a model that isn't there."""

    async def pause(request: Request) -> msgspec.Struct:
        abort = aborts(request)
        client = asked_client(service, request)
        await client.set_paused(True, abort=abort)
        return PauseReply("paused")

    async def resume(request: Request) -> msgspec.Struct:
        client = asked_client(service, request)
        await client.set_paused(False)
        return PauseReply("resumed")

    async def is_paused(request: Request) -> msgspec.Struct:
        return PausedReply(asked_client(service, request).paused)

    return [
        PAUSE.route(replying(pause)),
        RESUME.route(replying(resume)),
        IS_PAUSED.route(replying(is_paused)),
    ]
