"""`deploy/docker/healthy`, the health check of containers, against servers that answer."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/docker/healthy"


class Watched(ThreadingHTTPServer):
    """A server that is silent at one path, until it is `released`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.released = threading.Event()


class Answers(BaseHTTPRequestHandler):
    server: Watched

    def do_GET(self) -> None:
        fits = self.headers["Host"] == f"127.0.0.1:{self.server.server_port}"
        if self.path == "/silent":
            self.server.released.wait(60)
        self.send_response(200 if fits and self.path == "/health/ready" else 503)
        self.end_headers()
        self.wfile.write(b'{"status": "no worker"}')

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with Watched() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.released.set()
        server.shutdown()
        thread.join()


def healthy(port: int, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, str(port), path], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_server_that_is_ready_is_healthy(port: int) -> None:
    done = healthy(port, "/health/ready")
    assert (done.returncode, done.stdout.strip()) == (0, "200 OK")


def test_one_that_is_not_says_with_what_it_answered(port: int) -> None:
    done = healthy(port, "/health/other")
    status, reason = done.stdout.splitlines()
    assert (done.returncode, status.strip()) == (1, "503 Service Unavailable")
    assert reason == '{"status": "no worker"}'


def test_one_that_says_nothing_is_given_up(port: int) -> None:
    done = healthy(port, "/silent")
    assert (done.returncode, done.stdout.strip()) == (1, "no answer within 4 s")


def test_where_nobody_answers_nothing_is_healthy(port: int) -> None:
    assert healthy(1, "/health/ready").returncode == 1
