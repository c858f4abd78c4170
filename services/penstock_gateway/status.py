"""GET /status: what the engine says about itself, and this gateway's own counts."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.protocol.to_frontend import Status
from penstock_gateway.operations import Operation, OperationRoute
from penstock_gateway.service import Service


class GatewayState(msgspec.Struct, frozen=True, kw_only=True):
    """open_requests: generations being answered.  uptime: seconds."""

    pid: int
    connected: bool
    open_requests: int
    draining: bool
    uptime: float


class SystemState(msgspec.Struct, frozen=True, kw_only=True):
    """engine: its last Status, or null without a session.  status_age: seconds since then."""

    ready: bool
    reason: str
    model: str | None
    boot: str | None
    engine: dict[str, Any] | None
    status_age: float | None
    gateway: GatewayState


OPERATION = Operation(
    method="GET",
    path="/status",
    summary="State of the engine core and of this gateway",
    tag="operations",
    reply=SystemState,
)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""

    async def status(request: Request) -> Response:
        return Response(msgspec.json.encode(system_state(service)), media_type="application/json")

    return [OPERATION.route(status)]


def system_state(service: Service) -> SystemState:
    """The state as of now."""
    client = service.client
    now = time.monotonic()
    reason = service.unready_reason()
    told = client.status if client.connected else None
    welcome = client.welcome
    return SystemState(
        ready=reason is None,
        reason=reason or "",
        model=welcome.model if welcome is not None else None,
        boot=welcome.boot if welcome is not None else None,
        engine=_engine(told) if told is not None else None,
        status_age=round(client.status_age(now), 3) if told is not None else None,
        gateway=GatewayState(
            pid=os.getpid(),
            connected=client.connected,
            open_requests=service.open_requests,
            draining=service.draining,
            uptime=round(now - service.started, 3),
        ),
    )


def _engine(status: Status) -> dict[str, Any]:
    fields = msgspec.structs.asdict(status)
    return {**fields, "blocks_used": status.blocks_total - status.blocks_free}
