"""A gateway and an engine core at their limit of memory (RLIMIT_AS); of a worker, see
test_struck_operations."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.serving import PATIENCE, Server, wait_until
from tests.system.test_pause import Stream
from tests.system.test_struck_operations import WHOLE, alone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROMPTS = [[3 + number] * 100 for number in range(128)]
MANY = {"prompt": PROMPTS, "n": 8, "max_tokens": 6, "logprobs": 5}
"""A request of as many sequences as one may have."""


@pytest.fixture(scope="module")
def server(tiny_model: str) -> Iterator[Server]:
    with Server(tiny_model, "--num-kv-blocks", "256") as running:
        yield running


@contextmanager
def limited(pid: int, room: int) -> Iterator[None]:
    """So many bytes more than the process has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + room, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, before)


def ask(server: Server, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=2 * PATIENCE)


def test_a_body_that_a_gateway_has_no_memory_for(server: Server) -> None:
    """It alone is refused, and isn't blamed for being no HTTP; what streams goes on."""
    undisturbed = alone(server)
    gateway = server.child("gateway 0")
    refused: list[httpx.Response] = []

    def told() -> bool:
        with suppress(httpx.TransportError):  # Hung up on while there was more to come.
            refused.append(ask(server, prompt="a" * 30_000_000))
        return bool(refused)

    with limited(gateway, 2**20):
        stream = Stream(server.url, **WHOLE)
        wait_until(told)
        stream.join(2 * PATIENCE)
    (reply,) = refused
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "out_of_memory")
    assert (stream.error, stream.text, stream.finish) == ("", undisturbed, "length")
    assert server.child("gateway 0") == gateway
    assert alone(server) == undisturbed


def test_requests_that_an_engine_core_has_no_memory_for(server: Server) -> None:
    """It has room for them after all, or another one takes its place: all are answered, and streams
    have their bytes."""
    undisturbed = alone(server)
    engine = server.child("engine")
    stream = Stream(server.url, **WHOLE)
    wait_until(lambda: stream.text != "")
    with limited(engine, 0), ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda _: ask(server, **MANY), range(6)))
        stream.join(2 * PATIENCE)
    assert {reply.status_code for reply in replies} <= {200, 503}, [r.text for r in replies]
    assert (stream.error, stream.text, stream.finish) == ("", undisturbed, "length")
    wait_until(server.ready)
    assert alone(server) == undisturbed
