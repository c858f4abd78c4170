"""`penstock health`, beside a server of the standard library."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"ready":true}' if self.path == "/health/ready" else b'{"ready":false}'
        self.send_response(200 if self.path == "/health/ready" else 503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def health(url: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "penstock", "health", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout.strip() or done.stderr.strip()


def test_it_says_what_the_process_says(server: str) -> None:
    assert health(f"{server}/health/ready") == (0, '{"ready":true}')
    assert health(f"{server}/health/live") == (1, '{"ready":false}')


def test_nobody_there_is_not_healthy() -> None:
    code, words = health("http://127.0.0.1:9/health/ready")
    assert code == 1
    assert words == "not healthy: nobody answers (Connection refused) at 127.0.0.1:9"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host/", "http://host:port/"])
def test_what_is_no_url_is_wrong_usage(url: str) -> None:
    code, words = health(url)
    assert code == 2
    assert "URL" in words
