"""A line that a client changes from request to request doesn't reach the prompt, whichever API it
comes through; all else does."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.fake_engine import MODEL, FakeEngineClient

RULES = "You are a coding agent.\nWork in small steps."
ASKED = {"role": "user", "content": "Hello?"}


def tally(number: str) -> str:
    return (
        f"x-anthropic-billing-header: cc_version=2.1.197.{number}; cc_entrypoint=cli; cch={number};"
    )


def messages(first: str) -> dict[str, Any]:
    system = [{"type": "text", "text": first}, {"type": "text", "text": RULES}]
    return {"max_tokens": 8, "system": system, "messages": [ASKED]}


def messages_of_one_text(first: str) -> dict[str, Any]:
    return {"max_tokens": 8, "system": f"{first}\n{RULES}", "messages": [ASKED]}


def chat(first: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": f"{first}\n\n{RULES}"}, ASKED]}


def chat_of_parts(first: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": first}, {"type": "text", "text": RULES}]
    return {"messages": [{"role": "developer", "content": parts}, ASKED]}


def chat_of_its_own_message(first: str) -> dict[str, Any]:
    own = {"role": "system", "content": first}
    return {"messages": [own, {"role": "system", "content": RULES}, ASKED]}


def responses(first: str) -> dict[str, Any]:
    return {"instructions": f"{first}\n\n{RULES}", "input": "Hello?"}


def ollama(first: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "system", "content": f"{first}\n{RULES}"}, ASKED],
        "stream": False,
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", messages),
        ("/v1/messages", messages_of_one_text),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat_of_parts),
        ("/v1/chat/completions", chat_of_its_own_message),
        ("/v1/responses", responses),
        ("/api/chat", ollama),
    ],
)
async def test_a_billing_line_does_not_reach_the_prompt(
    http: httpx.AsyncClient, engine: FakeEngineClient, path: str, body: Any
) -> None:
    for number in ("a1b2c", "0f3d9"):
        reply = await http.post(path, json={"model": MODEL, **body(tally(number))})
        assert reply.status_code == 200, reply.text
    one, other = (seen for seen, _ in engine.template.calls[-2:])
    assert one == other
    assert [(each["role"], each["content"]) for each in one] == [
        ("system", RULES),
        ("user", "Hello?"),
    ]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": tally("a1b2c")},
        {"role": "system", "content": f"Read this:\n{tally('a1b2c')}"},
        {"role": "system", "content": "x-anthropic-billing-headers are lines."},
    ],
)
async def test_what_only_looks_like_it_is_left_alone(
    http: httpx.AsyncClient, engine: FakeEngineClient, message: dict[str, Any]
) -> None:
    body = {"model": MODEL, "messages": [message, ASKED]}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    assert engine.template.calls[-1][0][0]["content"] == message["content"]


async def test_a_count_is_that_of_the_prompt(http: httpx.AsyncClient) -> None:
    counts = []
    for system in (tally("a1b2c"), None):
        body = {"model": MODEL, "messages": [ASKED], "system": system}
        counts.append((await http.post("/v1/messages/count_tokens", json=body)).json())
    assert counts[0] == counts[1]
    assert counts[0]["input_tokens"] > 0
