"""A backend that answers as a test has it, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx


@dataclass
class Asked:
    """One request that came, health checks left out."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Scripted:
    """answer: the status of each reply; None: the connection is closed without a word.
    The body of a reply is the request's headers as JSON.  probed: a health check of a session's
    has come, as only somebody in front of a balancer sends."""

    answer: Callable[[], int | None]
    ready: bool = True
    asked: list[Asked] = field(default_factory=list)
    address: str = ""
    probed: bool = False


@contextlib.contextmanager
def scripted_gateway(answer: Callable[[], int | None] = lambda: 200) -> Iterator[Scripted]:
    """Serves until the end of the block."""
    script = Scripted(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # Or each body waits 40 ms for its head's acknowledgement.

        def do_GET(self) -> None:
            if self.path == "/health/ready":
                script.probed |= "x-session-id" in self.headers
                self._reply(200 if script.ready else 503, b"{}")
            else:
                self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.asked.append(Asked(self.command, self.path, headers, body))
            status = script.answer()
            if status is None:
                self.close_connection = True
            else:
                self._reply(status, json.dumps(headers).encode())

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    script.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def all_reached(url: str, there: Sequence[Scripted]) -> bool:
    """Whether a balancer at `url` has sent some session to each of them: Envoy's threads hear of a
    cell later than who asks what cells there are. Health checks are all that it asks."""
    for n in range(16):
        httpx.get(url + "/health/ready", headers={"x-session-id": f"probe-{n}"}, timeout=60)
    return all(each.probed for each in there)
