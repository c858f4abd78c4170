"""A gateway over a fake engine behind real sockets: a thread with its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

import uvicorn

from penstock.config.settings import GatewayConfig
from penstock.net import listener
from penstock_gateway.app import create_app
from penstock_gateway.http import protocol as http_protocol
from penstock_gateway.http.server import GatewayServer
from penstock_gateway.service import Patience
from tests.gateway.fake_engine import FakeEngineClient


class LiveGateway:
    """Use as a context manager. loop: makes its event loop.  shared:
    the socket, if others accept from it, too."""

    def __init__(
        self,
        engine: FakeEngineClient,
        config: GatewayConfig | None = None,
        patience: Patience | None = None,
        loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        shared: socket.socket | None = None,
    ) -> None:
        self.engine = engine
        self.app = create_app(engine, config or GatewayConfig(), patience=patience)  # type: ignore[arg-type]
        self.service = self.app.state.service
        self._server = GatewayServer(self.app, shared=shared is not None)
        self._server.config.http = http_protocol.protocol_class(
            self.service.patience, self.service.config.max_header_bytes
        )
        self._socket = shared or listener.bind("127.0.0.1", 0)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.loop = loop()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        # uvicorn's own: no signal handlers, for this is not the main thread.
        self._server.capture_signals = lambda: uvicorn.Server.capture_signals(self._server)
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._server.serve(sockets=[self._socket]))
        self.loop.close()

    def __enter__(self) -> LiveGateway:
        self._thread.start()
        # The socket is bound, so connections wait until the server accepts them.
        self._socket.listen(128)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.service.close()  # As the process does when its server has left.

    def leave(self, signum: int = signal.SIGTERM) -> None:
        """What a signal does."""
        try:
            self.loop.call_soon_threadsafe(self._server._leave, signum)
        except RuntimeError:
            pass  # It has left already.

    def connect(self) -> Connection:
        return Connection(self.port)

    def turn(self) -> None:
        """Returns when the loop has turned, and so has taken what was sent before."""
        for _ in range(3):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(60)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The loop stands still meanwhile: what is sent inside comes all at once."""
        stands, over = threading.Event(), threading.Event()

        def hold() -> None:
            stands.set()
            over.wait(60)

        self.loop.call_soon_threadsafe(hold)
        try:
            assert stands.wait(60)
            yield
        finally:
            over.set()


class Connection:
    """A raw HTTP/1.1 connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def post(self, path: str, body: bytes, *headers: str) -> None:
        """Sends a whole request."""
        head = [
            f"POST {path} HTTP/1.1",
            "host: localhost",
            f"content-length: {len(body)}",
            *headers,
        ]
        self.socket.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)

    def read_until(self, mark: bytes) -> bytes:
        """Everything up to and with `mark`, and what came along behind it."""
        data = b""
        while mark not in data:
            more = self.socket.recv(65_536)
            if not more:
                raise EOFError(f"closed after {data!r}")
            data += more
        return data

    def read_all(self) -> bytes:
        """Everything until the server closes."""
        data = b""
        while more := self.socket.recv(65_536):
            data += more
        return data
