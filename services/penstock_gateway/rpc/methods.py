"""The methods of a service, as its descriptor has them."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from penstock_gateway.rpc.calls import Calls, Context, parsed
from penstock_gateway.rpc.scope import scope_of

Handlers = dict[str, "grpc.RpcMethodHandler"]
"""Handlers by the methods' paths."""


def methods_in(service: ServiceDescriptor) -> dict[str, type[Any]]:
    """The class of each method's request, by the method's path."""
    return {
        f"/{service.full_name}/{method.name}": GetMessageClass(method.input_type)
        for method in service.methods
    }


def asking(calls: Calls, path: str, kind: type[Any]) -> grpc.RpcMethodHandler:
    """A method whose endpoint answers with one message. kind: of the request."""

    async def ask(request: bytes, context: Context) -> bytes:
        scope = scope_of(context, path, message=await parsed(kind, request))
        async with calls.exchange(context, scope) as exchange:
            return await exchange.whole()

    return calls.unary(ask)
