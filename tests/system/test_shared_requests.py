"""Identical requests through the whole system: computed once, and whole for each of them, whatever
is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from penstock import resumed_events
from testing.metrics_page import PORTS, Page, port_of, read_page
from testing.serving import Server, wait_until

pytestmark = pytest.mark.timeout(600)

PATIENCE = 300
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count, and say why."}],
    "temperature": 1.1,
    "seed": 11,
    "logprobs": True,
    "ignore_eos": True,
    "max_tokens": 160,
}


def engine_page(server: Server) -> Page:
    return read_page(port_of(server, "engine"))


def computed(server: Server) -> int:
    """Tokens of answers that the engine core has had computed, as it last said."""
    return int(server.get("/status")[1]["engine"]["tokens_generated"])


def ask(server: Server, tenant: str = "one", **changes: Any) -> tuple[dict[str, Any], str | None]:
    """The message with its log-probabilities, and what the headers say of sharing."""
    reply = httpx.post(
        server.url + CHAT,
        json={"model": server.model, **BODY, **changes},
        headers={"authorization": f"Bearer {tenant}"},
        timeout=PATIENCE,
    )
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    assert reply.json()["usage"]["completion_tokens"] == BODY["max_tokens"]
    said = {"content": choice["message"]["content"], "logprobs": choice["logprobs"]["content"]}
    return said, reply.headers.get("x-penstock-shared")


class Stream:
    """An open stream that has given something."""

    def __init__(self, server: Server, **changes: Any) -> None:
        self._opened = httpx.stream(
            "POST",
            server.url + CHAT,
            json={"model": server.model, **BODY, "stream": True, **changes},
            headers={"authorization": "Bearer one"},
            timeout=PATIENCE,
        )
        self._reply = self._opened.__enter__()
        assert self._reply.status_code == 200
        self._lines = self._reply.iter_lines()
        self._found: dict[str, Any] = {"content": "", "logprobs": []}
        while not self._found["logprobs"]:
            self._take(next(self._lines))

    @property
    def shared(self) -> str | None:
        found: str | None = self._reply.headers.get("x-penstock-shared")
        return found

    def _take(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            self._found["content"] += choice["delta"].get("content") or ""
            self._found["logprobs"] += (choice.get("logprobs") or {}).get("content") or []

    def rest(self) -> dict[str, Any]:
        for line in self._lines:
            self._take(line)
        self.close()
        return self._found

    def close(self) -> None:
        self._opened.__exit__(None, None, None)


@pytest.fixture
def sharing(start_server: Callable[..., Server]) -> Server:
    return start_server("--share-identical-requests", "--gateways", "2", *PORTS)


def test_the_second_is_not_computed(sharing: Server) -> None:
    before = computed(sharing)
    first = Stream(sharing)
    with ThreadPoolExecutor(4) as pool:
        whole = pool.submit(ask, sharing)
        stranger = pool.submit(ask, sharing, "another")
        late = Stream(sharing)
        first_said = first.rest()
        assert late.rest() == first_said
        assert whole.result() == (first_said, "1")
        assert stranger.result() == (first_said, None)
    assert (first.shared, late.shared) == (None, "1")
    wait_until(lambda: computed(sharing) - before == 2 * BODY["max_tokens"])
    # One that leaves takes nothing along.
    undisturbed, _ = ask(sharing, seed=12)
    first, second = Stream(sharing, seed=12), Stream(sharing, seed=12)
    assert second.shared == "1"
    first.close()
    assert second.rest() == undisturbed


def test_what_dies_under_both_breaks_neither(sharing: Server) -> None:
    undisturbed, _ = ask(sharing, seed=13)
    for process in ("worker 0", "engine"):
        first, second = Stream(sharing, seed=13), Stream(sharing, seed=13)
        assert second.shared == "1"
        os.kill(sharing.child(process), signal.SIGKILL)
        assert first.rest() == undisturbed
        assert second.rest() == undisturbed
        wait_until(sharing.ready)
    both_outlive_their_gateways(sharing)


def both_outlive_their_gateways(sharing: Server) -> None:
    body = {"model": sharing.model, **BODY, "seed": 14, "logprobs": None}
    undisturbed = [event["choices"] for event in resumed_events(sharing.url, body)]
    before, begun = engine_page(sharing), 0

    def read() -> list[Any]:
        nonlocal begun
        found = []
        for event in resumed_events(sharing.url, body):
            begun += not found
            found.append(event["choices"])
        return found

    with ThreadPoolExecutor(3) as pool:
        reading = [pool.submit(read) for _ in range(3)]
        wait_until(lambda: begun == len(reading))
        for name in ("gateway 0", "gateway 1"):
            os.kill(sharing.child(name), signal.SIGKILL)
        said = ["".join(text(each.result(PATIENCE))) for each in reading]
    assert said == ["".join(text(undisturbed))] * len(reading)
    shared = "penstock:requests_shared_total"
    assert engine_page(sharing).value(shared) - before.value(shared) >= 2


def text(events: list[Any]) -> list[str]:
    return [choice["delta"].get("content") or "" for choices in events for choice in choices]
