"""GET /status: what the engine cores report about themselves, and this gateway's own counts. GET
/load: the one count that balancers of vLLM's servers ask."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.client.client_view import EngineState
from penstock.protocol.to_frontend import Status
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.keys.ring import current
from penstock_gateway.models.backend import ModelBackend
from penstock_gateway.service import Service


class GatewayState(msgspec.Struct, frozen=True, kw_only=True):
    """open_requests: generations being answered.  uptime: seconds."""

    pid: int
    connected: bool
    open_requests: int
    draining: bool
    uptime: float


class EngineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One engine core. index: its number in this gateway, among those of its model.  connected:
    there is a session, and it serves its model.  reason: why it isn't ready.  open_requests: of
    this gateway.  blocks: of its KV pool.  status_age: seconds since its last status; null without
    a session."""

    index: int
    endpoint: str
    model: str | None
    boot: str | None
    fingerprint: str | None
    connected: bool
    ready: bool
    reason: str
    draining: bool
    waiting: int
    running: int
    blocks_total: int
    blocks_used: int
    tokens_generated: int
    open_requests: int
    status_age: float | None


class ModelInState(msgspec.Struct, frozen=True, kw_only=True):
    """One of several models. state: as the supervisor has it, where it starts and ends models; else
    `ready`, or not.  reason: why it isn't ready.  waiting: requests of this gateway that wait for
    it to be loaded.  memory_gib: that it counts for."""

    model: str | None
    state: str
    ready: bool
    reason: str
    on_demand: bool
    waiting: int
    memory_gib: float | None


class SystemState(msgspec.Struct, frozen=True, kw_only=True):
    """engine: the last Status, or null without a session; of several engine cores, the sums.
    status_age: seconds since then.  boot: theirs that are connected, with commas.  models:
    where there are several, or some on demand; `engine` is then null."""

    ready: bool
    reason: str
    model: str | None
    boot: str | None
    engine: dict[str, Any] | None
    status_age: float | None
    engines: list[EngineEntry]
    gateway: GatewayState
    models: list[ModelInState] | msgspec.UnsetType = msgspec.UNSET


OPERATION = Operation(
    method="GET",
    path="/status",
    summary="State of the engine cores and of this gateway",
    tag="operations",
    reply=SystemState,
)


class Load(msgspec.Struct, frozen=True):
    """server_load: requests that this gateway is answering."""

    server_load: int


LOAD = Operation(
    method="GET",
    path="/load",
    summary="Requests being answered (vLLM)",
    tag="operations",
    access="metrics",
    reply=Load,
)


def routes(service: Service) -> list[OperationRoute]:
    """The routes of the state and of the load."""

    async def status(request: Request) -> Response:
        return Response(msgspec.json.encode(system_state(service)), media_type="application/json")

    async def load(request: Request) -> Response:
        found = msgspec.json.encode(Load(service.open_requests))
        return Response(found, media_type="application/json")

    return [OPERATION.route(status), LOAD.route(load)]


def system_state(service: Service) -> SystemState:
    """The state as of now, of the models that the caller may use: others aren't there for it."""
    backends = [backend for backend in service.models.backends if _may_see(backend)]
    engines = [each for backend in backends for each in backend.client.engines]
    now = time.monotonic()
    reason = service.unready_reason()
    # What several models would add up to means nothing.
    several = service.models.several or any(each.residence is not None for each in backends)
    client = None if several or not backends else backends[0].client
    reported = client.status if client is not None and client.connected else None
    welcome = client.welcome if client is not None else None
    all_seen = len(backends) == len(service.models.backends)
    return SystemState(
        ready=reason is None,
        reason=reason or "",
        model=welcome.model if welcome is not None else None,
        boot=_boots(engines) or (welcome.boot if welcome is not None else None),
        engine=_engine(reported) if reported is not None else None,
        status_age=round(client.status_age(now), 3) if client is not None and reported else None,
        engines=[_entry(each) for each in engines],
        gateway=GatewayState(
            pid=os.getpid(),
            connected=any(backend.client.connected for backend in backends),
            open_requests=service.open_requests
            if all_seen
            else sum(each.open_requests for each in engines),
            draining=service.draining,
            uptime=round(now - service.started, 3),
        ),
        models=[_model(backend) for backend in backends] if several else msgspec.UNSET,
    )


def _may_see(backend: ModelBackend) -> bool:
    """Whether the caller may use it: by its own names, or those of its adapters."""
    caller = current.get()
    if caller.key is None or caller.key.models is None:
        return True
    return any(caller.may_use(name) for name in backend.names())


def _model(backend: ModelBackend) -> ModelInState:
    reason, residence = backend.unready_reason(), backend.residence
    state = None if residence is None else residence.state
    here = "ready" if reason is None else "absent"
    return ModelInState(
        model=backend.name,
        state=here if state is None else state.presence,
        ready=reason is None,
        reason=reason or "",
        on_demand=backend.on_demand,
        waiting=0 if residence is None else residence.waiting,
        memory_gib=None if state is None else state.memory_gib,
    )


def _boots(engines: list[EngineState]) -> str:
    connected = (each for each in engines if each.connected)
    return ",".join(each.welcome.boot for each in connected if each.welcome is not None)


def _entry(engine: EngineState) -> EngineEntry:
    welcome, status = engine.welcome, engine.status
    total = status.blocks_total if status is not None else 0
    return EngineEntry(
        index=engine.index,
        endpoint=engine.endpoint,
        model=welcome.model if welcome is not None else None,
        boot=welcome.boot if welcome is not None else None,
        fingerprint=status.fingerprint if status is not None else None,
        connected=engine.connected,
        ready=engine.ready,
        reason=engine.reason,
        draining=engine.draining,
        waiting=status.waiting if status is not None else 0,
        running=status.running if status is not None else 0,
        blocks_total=total,
        blocks_used=total - status.blocks_free if status is not None else 0,
        tokens_generated=status.tokens_generated if status is not None else 0,
        open_requests=engine.open_requests,
        status_age=round(engine.status_age, 3) if status is not None else None,
    )


def _engine(status: Status) -> dict[str, Any]:
    fields = msgspec.structs.asdict(status)
    return {**fields, "blocks_used": status.blocks_total - status.blocks_free}
