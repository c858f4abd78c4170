"""A hub that answers some requests in its own way, and pulls from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from huggingface_hub import constants

from penstock.hub import transfer
from penstock.hub.connection import Hub
from penstock.hub.fetch import fetch_model
from penstock.hub.name import parse
from testing.hub_server import HubRepository, HubServer, serving_hub

FILE = "m-Q4_K_M.gguf"
CONTENT = bytes(range(256)) * 4000
LISTING = "/api/models/org/m"
Handler = BaseHTTPRequestHandler
Answer = Callable[[Handler], None]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(transfer, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(transfer, "RETRIES", 2)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving_hub(m=HubRepository({FILE: CONTENT, "README.md": b"# m"})) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


def pull(server: HubServer, cache: Path) -> Path:
    name = parse(f"org/m:{FILE}")
    assert name is not None
    return fetch_model(name, lambda _: None, "newest", Hub(endpoint=server.url, cache=cache)).path


def left(cache: Path) -> int:
    """Bytes on the disk."""
    return sum(each.lstat().st_size for each in cache.rglob("*") if not each.is_dir())


def tricked(hub: HubServer, path: str, answer: Answer) -> None:
    """Answers requests for a path, or one that ends in it, in another way."""

    def trick(handler: Handler, asked: str) -> bool:
        if not asked.endswith(path):
            return False
        try:
            answer(handler)
        except OSError:
            pass  # The client has heard enough.
        return True

    hub.trick = trick


def says(status: int, body: bytes = b"", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | named).items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return answer


class Endless:
    """A body that never ends, as fast as it is read. sent: bytes of it."""

    def __init__(self, status: int, **headers: str) -> None:
        self.head = says(status, b"", Content_Length=str(10**15), **headers)
        self.sent = 0

    def __call__(self, handler: Handler) -> None:
        self.head(handler)
        while self.sent < 1 << 30:
            self.sent += handler.wfile.write(b" " * 65536)


class Trickle:
    """A byte now and then, for as long as the connection holds. gone: once for each that ended."""

    def __init__(self, head: bytes, rest: bytes) -> None:
        self.head, self.rest, self.gone = head, rest, threading.Semaphore(0)

    def __call__(self, handler: Handler) -> None:
        try:
            handler.wfile.write(self.head)
            while True:
                threading.Event().wait(0.02)
                handler.wfile.write(self.rest)
        finally:
            self.gone.release()
