"""Servers with drafts and one without say the same, also when processes are killed under them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from testing.serving import PATIENCE, Server, wait_until

pytestmark = [pytest.mark.timeout(600)]

SMALL = ("--max-model-len", "1024", "--num-kv-blocks", "256")
LIST = "".join(f"{n}. The price of item {n} is {n * 7 % 90} euros.\n" for n in range(1, 12))
COPY: dict[str, Any] = {
    "messages": [{"role": "user", "content": f"Repeat this list word for word:\n{LIST}"}],
    "max_completion_tokens": 120,
    "temperature": 0.0,
    "seed": 3,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 12, "maxItems": 16}
    },
    "required": ["numbers"],
    "additionalProperties": False,
}
BODIES: dict[str, dict[str, Any]] = {
    "copy": COPY,
    "two": {**COPY, "n": 2, "temperature": 0.7, "logprobs": True, "top_logprobs": 2},
    "penalties": {**COPY, "frequency_penalty": 0.4, "presence_penalty": 0.2, "temperature": 0.5},
    "stop": {**COPY, "stop": ["item 4"]},
    "schema": {
        **COPY,
        "temperature": 0.9,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "numbers", "schema": SCHEMA},
        },
    },
}


def answer(server: Server, body: dict[str, Any]) -> Any:
    """What is said, without ids, times and counts of what was found in the cache."""
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE * 4)
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(server: Server, body: dict[str, Any], at: int = -1, victim: int = 0) -> str:
    """The text of a stream. A process is killed behind the chunk `at`."""
    text = ""
    with httpx.stream(
        "POST",
        f"{server.url}/v1/chat/completions",
        json={**body, "stream": True},
        timeout=PATIENCE * 4,
    ) as reply:
        for count, line in enumerate(reply.iter_lines()):
            if count == at:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                text += "".join(each["delta"].get("content") or "" for each in choices)
    return text


@pytest.fixture(scope="module")
def plain() -> Iterator[dict[str, Any]]:
    """What is answered where nothing is drafted."""
    with Server(*SMALL, "--speculative-config", "off") as server:
        yield {name: answer(server, body) for name, body in BODIES.items()}


@pytest.fixture(scope="module")
def drafting() -> Iterator[Server]:
    """A server that drafts by default on a CPU."""
    with Server(*SMALL, "--speculative-config", "auto") as server:
        yield server


def test_answers_are_those_without(drafting: Server, plain: dict[str, Any]) -> None:
    """Each twice: the second time, outputs of the first are known."""
    for name, body in [*BODIES.items()] * 2:
        assert answer(drafting, body)["choices"] == plain[name]["choices"], name


def test_a_prediction_is_counted_and_changes_nothing(
    drafting: Server, plain: dict[str, Any]
) -> None:
    said = plain["copy"]["choices"][0]["message"]["content"]
    parts = [{"type": "text", "text": said[:60]}, {"type": "text", "text": said[60:]}]

    def kept(content: Any) -> int:
        found = answer(drafting, {**COPY, "prediction": {"type": "content", "content": content}})
        assert found["choices"] == plain["copy"]["choices"]
        details = found["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] <= found["usage"]["completion_tokens"]
        accepted: int = details["accepted_prediction_tokens"]
        return accepted

    kept("Nothing of the kind. " * 20)
    # On a busy machine it may take a while until drafts seem to pay.
    for content in (said, parts):
        wait_until(lambda content=content: kept(content) > 0)


@pytest.mark.parametrize("victim", ["worker 0", "engine"])
def test_a_stream_goes_on_when_a_process_is_killed_under_it(
    drafting: Server, plain: dict[str, Any], victim: str
) -> None:
    wait_until(drafting.ready)
    first = drafting.child(victim)
    said = plain["copy"]["choices"][0]["message"]["content"]
    body = {**COPY, "prediction": {"type": "content", "content": said}}
    assert streamed(drafting, body, 12, first) == said
    wait_until(lambda: drafting.children().get(f"penstock: {victim}") not in (None, first))
