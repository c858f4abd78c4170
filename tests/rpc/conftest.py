from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.service import Patience, Service
from penstock_rpc.calls import Calls
from penstock_rpc.exchange import RunningCalls
from penstock_rpc.server import RpcServer
from penstock_rpc.services import routes_of
from tests.gateway.conftest import machine, preparers_end  # noqa: F401
from tests.gateway.fake_engine import FakeEngineClient


@dataclass
class Serving:
    """A gRPC server of this process over a fake engine core, and a channel to it."""

    engine: FakeEngineClient
    service: Service
    server: RpcServer
    channel: grpc.aio.Channel

    @property
    def port(self) -> int:
        return self.server.port

    async def unary(self, path: str, message: Any, reply: type[Any], **options: Any) -> Any:
        call = self.channel.unary_unary(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        return await call(message, **options)

    def stream(self, path: str, message: Any, reply: type[Any], **options: Any) -> Any:
        call = self.channel.unary_stream(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        return call(message, **options)

    async def last(self, path: str, message: Any, reply: type[Any]) -> Any:
        """The last reply of a method, be it one that streams or not."""
        return [each async for each in self.stream(path, message, reply)][-1]


Serve = Callable[..., Awaitable[Serving]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def begin(
            engine: FakeEngineClient | None = None,
            *,
            reader: float = 60.0,
            body: float = 60.0,
            **settings: Any,
        ) -> Serving:
            engine = engine or FakeEngineClient()
            config = GatewayConfig(grpc_port=0, shutdown_timeout=0.0, **settings)
            running = RunningCalls()
            app = create_app(
                engine,  # type: ignore[arg-type]
                config,
                patience=Patience(reader=reader, body=body),
                more=lambda service: routes_of(service, running),
            )
            service: Service = app.state.service
            stack.callback(service.close)
            server = RpcServer(Calls(app, service, running), config)
            await server.start()
            stack.push_async_callback(server.stop)
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")
            await stack.enter_async_context(channel)
            return Serving(engine, service, server, channel)

        yield begin


@pytest.fixture
async def serving(serve: Serve) -> Serving:
    return await serve()
