"""POST /pause, /resume, /sleep and /wake_up, GET /is_paused and /is_sleeping, as in vLLM. `model`
selects one of several models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.client.control import sleep_level, wake_tags
from penstock.protocol.common import WAKE_TAGS
from penstock_gateway.http.operations import Operation, OperationRoute, Parameters, asked
from penstock_gateway.service import Service

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
        payload = msgspec.json.encode(await answer(request))
        return Response(payload, media_type="application/json")

    return reply


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


class SleepReply(msgspec.Struct, frozen=True):
    """What has been done; waking: it sleeps until the other tag is named, too."""

    status: Literal["asleep", "awake", "waking"]


class SleepingReply(msgspec.Struct, frozen=True):
    """Whether its memory is given back until somebody wakes it."""

    is_sleeping: bool


SLEEP = model_operation(
    "POST",
    "/sleep",
    "Put the model to sleep; the reply comes when its memory is free",
    SleepReply,
    query={
        "level": (
            "What is freed. 1: the KV cache, and weights in GPU memory; 2: all weights as well.",
            {"type": "integer", "default": 1},
        ),
        "mode": mode_option("once the model is awake"),
    },
)
WAKE_UP = model_operation(
    "POST",
    "/wake_up",
    "Wake the model: load it again and continue",
    SleepReply,
    query={
        "tags": (
            "What to bring back; may be repeated; all if absent. The model wakes when both have "
            "been named.",
            {"type": "array", "items": {"type": "string", "enum": list(WAKE_TAGS)}},
        ),
    },
)
IS_SLEEPING = model_operation("GET", "/is_sleeping", "Whether the model is asleep", SleepingReply)


def _pause_routes(service: Service) -> list[OperationRoute]:
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


def routes(service: Service) -> list[OperationRoute]:
    """The six routes. None of them starts a model that isn't there."""

    async def sleep(request: Request) -> msgspec.Struct:
        depth, abort = sleep_level(asked(request, "level")), aborts(request)
        client = asked_client(service, request)
        await client.put_to_sleep(depth, abort=abort)
        return SleepReply("asleep")

    async def wake_up(request: Request) -> msgspec.Struct:
        tags = wake_tags(asked(request, "tags"))
        client = asked_client(service, request)
        awake = await client.wake_up(tags)
        return SleepReply("awake" if awake else "waking")

    async def is_sleeping(request: Request) -> msgspec.Struct:
        return SleepingReply(asked_client(service, request).sleeping)

    return [
        *_pause_routes(service),
        SLEEP.route(replying(sleep)),
        WAKE_UP.route(replying(wake_up)),
        IS_SLEEPING.route(replying(is_sleeping)),
    ]
