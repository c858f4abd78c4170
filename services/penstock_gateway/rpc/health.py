"""grpc.health.v1, told by what /health/ready tells."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from grpc import StatusCode
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from penstock_gateway.rpc.calls import Calls, Context, parsed
from penstock_gateway.rpc.methods import Handlers
from penstock_gateway.rpc.status import RefusedCall

NAME = "grpc.health.v1.Health"
LOOK_EVERY = 0.5
"""Seconds between looks, for those who watch."""
MOST_WATCHERS = 64
"""Most calls that watch the health at a time, as they need no key."""

_STATUS = HealthCheckResponse.ServingStatus


def handlers(calls: Calls, services: Collection[str]) -> Handlers:
    """Handlers by the methods' paths. services: that can be asked about."""
    health = _Health(calls, services)
    return {
        f"/{NAME}/Check": calls.unary(health.check),
        f"/{NAME}/Watch": calls.streaming(health.watch),
    }


class _Health:
    def __init__(self, calls: Calls, services: Collection[str]) -> None:
        self._calls = calls
        self._services = frozenset(services) | {""}
        self._watchers = 0

    async def check(self, request: bytes, context: Context) -> bytes:
        name = (await parsed(HealthCheckRequest, request)).service
        if name not in self._services:
            raise RefusedCall(StatusCode.NOT_FOUND, f"there is no service {name[:100]!r} here")
        return HealthCheckResponse(status=self._status(name)).SerializeToString()

    async def watch(self, request: bytes, context: Context) -> None:
        name = (await parsed(HealthCheckRequest, request)).service
        if self._watchers >= MOST_WATCHERS:
            raise RefusedCall(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{MOST_WATCHERS} calls to Watch are open, the maximum",
            )
        self._watchers += 1
        try:
            told = None
            while True:
                leaves, status = self._calls.service.draining, self._status(name)
                if status != told:
                    told = status
                    reply = HealthCheckResponse(status=status)
                    await self._calls.write(context, reply.SerializeToString())
                if leaves:
                    return
                await asyncio.sleep(LOOK_EVERY)
        finally:
            self._watchers -= 1

    def _status(self, name: str) -> int:
        if name not in self._services:
            return int(_STATUS.SERVICE_UNKNOWN)
        ready = self._calls.service.unready_reason() is None
        return int(_STATUS.SERVING if ready else _STATUS.NOT_SERVING)
