"""POST /sleep and /wake_up, GET /is_sleeping, as in vLLM. `model` selects one of several models."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request

from penstock.client.sleeping import sleep_level, wake_tags
from penstock.protocol.common import WAKE_TAGS
from penstock_gateway.control.replying import (
    aborts,
    asked_client,
    mode_option,
    model_operation,
    replying,
)
from penstock_gateway.http.operations import OperationRoute, asked
from penstock_gateway.service import Service


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


def routes(service: Service) -> list[OperationRoute]:
    """The three routes. None of them starts a model that isn't there."""

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
        SLEEP.route(replying(sleep)),
        WAKE_UP.route(replying(wake_up)),
        IS_SLEEPING.route(replying(is_sleeping)),
    ]
