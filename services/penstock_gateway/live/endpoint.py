"""The endpoint: it passes on the broadcast's events at the reader's pace."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from penstock_gateway.http.disconnect import while_connected
from penstock_gateway.http.errors import leaving
from penstock_gateway.http.events import EventStream
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.http.room import room_of
from penstock_gateway.live.broadcast import Broadcast, Watcher
from penstock_gateway.live.state import LiveState
from penstock_gateway.service import Service

OPERATION = Operation(
    method="GET",
    path="/live",
    summary="Live state of the engine cores and this gateway: an event `snapshot` twice a second",
    tag="operations",
    access="admin",
    reply=LiveState,
    media_type="text/event-stream",
)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    return [OPERATION.route(LiveEndpoint(service))]


class LiveEndpoint:
    """An ASGI application. Its streams are no requests: nobody waits for them when the gateway
    leaves."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._broadcast = Broadcast(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._service.draining:
            raise leaving()
        events = EventStream(
            send, keepalive=self._service.config.keepalive_interval, room=room_of(scope)
        )
        if scope["method"] == "HEAD":
            await events.write(b"", last=True)
            return
        watcher = self._broadcast.join()
        try:
            await while_connected(_stream(watcher, events), receive, events.tick)
        finally:
            self._broadcast.leave(watcher)


async def _stream(watcher: Watcher, events: EventStream) -> None:
    """A write waits for a client that doesn't read; what comes meanwhile is not kept for it."""
    while event := await watcher.next():
        await events.write(event)
    await events.write(b"", last=True)
