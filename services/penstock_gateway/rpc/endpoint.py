"""What endpoints have in common whose bodies are messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock_gateway.http.operations import Operation
from penstock_gateway.http.replies import send_whole
from penstock_gateway.rpc.frames import FRAMES
from penstock_gateway.rpc.scope import MESSAGE
from penstock_gateway.service import Service


def operation(
    path: str,
    summary: str,
    *,
    access: Literal["open", "key", "admin"] = "key",
    counted: bool = False,
    traced_as: str | None = None,
) -> Operation:
    """One method of a service. path: as gRPC has it."""
    return Operation(
        method="POST",
        path=path,
        summary=summary,
        tag="gRPC",
        access=access,
        counted=counted,
        described=False,
        traced_as=traced_as,
    )


def message_of(scope: Scope) -> Any:
    """The call's message. Raises InvalidRequest for a request that is no call."""
    message = scope.get(MESSAGE)
    if message is None:
        raise InvalidRequest(f"{scope['path']} is a gRPC method and doesn't accept JSON")
    return message


class MessageEndpoint(ABC):
    """Answers one message with another."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = await self.answer(message_of(scope))
        await send_whole(send, 200, reply.SerializeToString(), FRAMES.content_type.decode())

    @abstractmethod
    async def answer(self, message: Any) -> Any:
        """The reply's message. Raises what endpoints raise."""
