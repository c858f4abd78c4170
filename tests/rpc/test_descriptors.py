"""More gRPC connections than the process has file descriptors for: as many are served as leave some
for everything else. A process of its own has the limit."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_rpc.calls import Calls
from penstock_rpc.exchange import RunningCalls
from penstock_rpc.server import RpcServer
from penstock_rpc.services import routes_of
from tests.gateway.fake_engine import FakeEngineClient

pytestmark = pytest.mark.timeout(120)

LIMIT, CLIENTS = 64, 60
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The greeting of HTTP/2: the preface and empty settings."""


def run() -> None:
    """The process. Says its port, and whenever it is asked, whether it can open a file."""

    async def serve() -> None:
        config, running = GatewayConfig(grpc_port=0, shutdown_timeout=0.0), RunningCalls()
        engine = FakeEngineClient()
        app = create_app(
            engine,  # type: ignore[arg-type]
            config,
            more=lambda service: routes_of(service, running),
        )
        server = RpcServer(Calls(app, app.state.service, running), config)
        await server.start()
        print(server.port, server.most_connections, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            try:
                Path("/dev/null").open().close()
                print("it can", flush=True)
            except OSError as error:
                print(error, flush=True)

    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    asyncio.run(serve())


@pytest.fixture
def limited() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import run; run()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def greeted(client: socket.socket) -> str:
    try:
        return "served" if client.recv(9) else "closed"
    except ConnectionError:
        return "closed"


def test_connections_leave_descriptors_to_everything_else(limited: subprocess.Popen[str]) -> None:
    assert limited.stdin is not None
    assert limited.stdout is not None
    port, most = map(int, limited.stdout.readline().split())
    assert LIMIT // 4 < most < LIMIT - LIMIT // 4
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            for _ in range(CLIENTS)
        ]
        for client in clients:
            client.sendall(GREETING)
        assert Counter(map(greeted, clients)) == {"served": most, "closed": CLIENTS - most}
        limited.stdin.write("?\n")
        limited.stdin.flush()
        assert limited.stdout.readline() == "it can\n"
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        check(b"", timeout=60, wait_for_ready=True)  # Those that have left made room.
