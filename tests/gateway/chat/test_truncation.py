"""Where a conversation is longer than the context, the oldest messages go; the reply says so."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from penstock.errors import InvalidRequest
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.prompt import ChatPrompt
from penstock_gateway.chat.truncation import truncated_prompt
from penstock_gateway.http.notes import HEADER, begin_notes
from tests.gateway.fake_engine import MODEL, FakeEngineClient


async def fill(messages: list[Message]) -> ChatPrompt:
    """A token a message, and one for each letter."""
    text = "\n".join(f"{each.role}:{each.content or ''}" for each in messages)
    return ChatPrompt([0] * sum(1 + len(str(each.content or "")) for each in messages), text)


def kept(text: str) -> list[str]:
    return text.split("\n") if text else []


async def test_the_oldest_go_and_calls_with_their_results() -> None:
    """Of random conversations, against what may go first, one after another."""
    dice = random.Random(3)
    for _ in range(200):
        messages = [Message(role="system", content="S")]
        for number in range(dice.randrange(1, 12)):
            messages.append(Message(role="user", content=f"{number}" * dice.randrange(1, 9)))
            for _ in range(dice.randrange(3)):
                messages.append(Message(role="assistant", content=f"c{number}"))
                messages += [Message(role="tool", content="r" * dice.randrange(1, 9))] * 2
        messages.append(Message(role="user", content="last"))
        whole = len((await fill(messages)).prompt_token_ids)
        most = dice.randrange(7, whole + 5)
        notes = begin_notes()
        found = kept((await truncated_prompt(messages, fill, most, "why")).text)
        assert len((await truncated_prompt(messages, fill, most, "why")).prompt_token_ids) <= most
        given = [f"{each.role}:{each.content}" for each in messages]
        assert found[0] == given[0]
        assert found[-1] == given[-1]
        assert found[1:] == given[len(given) - len(found) + 1 :]
        assert not found[1].startswith("tool:")
        assert (len(found) < len(given)) is (whole > most) is bool(notes)


async def test_what_has_to_stay_may_be_too_long() -> None:
    messages = [Message(role="system", content="S" * 20), Message(role="user", content="last")]
    with pytest.raises(InvalidRequest, match="there is room for 10"):
        await truncated_prompt(messages, fill, 10, "why")


ASKED: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "responses": ("/v1/responses", {}, {"truncation": "auto"}, {"truncation": "disabled"}),
    "ollama": ("/api/chat", {"stream": False}, {}, {"truncate": False}),
    "num_ctx": (
        "/api/chat",
        {"stream": False, "options": {"num_ctx": 200}},
        {},
        {"truncate": False},
    ),
}


@pytest.mark.parametrize("case", list(ASKED))
async def test_over_http(case: str, http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    path, more, wanted, unwanted = ASKED[case]
    limit = 200 if case == "num_ctx" else engine.welcome.limits.max_model_len
    turns = [
        {"role": role, "content": f"{number} " + "x" * (limit // 8)}
        for number in range(8)
        for role in ("user", "assistant")
    ]
    said = [{"role": "system", "content": "Be brief."}, *turns, {"role": "user", "content": "Q"}]
    field = "input" if case == "responses" else "messages"
    body = {"model": MODEL, field: said, **more}
    reply = await http.post(path, json=body | wanted)
    assert reply.status_code == 200, reply.text
    text = bytes(engine.submitted[-1][0]).decode()
    assert "were left out" in reply.headers[HEADER]
    assert "Be brief." in text
    assert "user: Q" in text
    assert "0 xxx" not in text
    assert len(engine.submitted[-1][0]) < limit
    if case == "responses":
        assert reply.json()["truncation"] == "auto"
    refused = await http.post(path, json=body | unwanted)
    assert refused.status_code == 400, refused.text
    short = await http.post(path, json={"model": MODEL, field: said[-1:], **more, **wanted})
    assert HEADER not in short.headers
