"""What Mistral's SDK sends and reads: its own words for fields that there are."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway import sse
from tests.gateway.chat import tool_calls
from tests.gateway.fake_engine import CONTEXT, MODEL, FakeEngineClient, say

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}, "strict": False}}


async def test_random_seed_is_the_seed(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    for fields in ({"random_seed": 5}, {"seed": 5}, {"seed": 5, "random_seed": 5}):
        assert (await http.post(CHAT, json=ASKED | fields)).status_code == 200
        assert engine.submitted[-1][1].seed == 5
    refused = await http.post(CHAT, json=ASKED | {"seed": 5, "random_seed": 6})
    assert refused.status_code == 400
    assert "seed is 5 and random_seed is 6" in refused.json()["error"]["message"]


async def test_any_tool_is_a_required_one(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    asked = []
    for choice in ("any", "required"):
        reply = await http.post(CHAT, json=ASKED | {"tools": [TOOL], "tool_choice": choice})
        assert reply.status_code == 200, reply.text
        asked.append(engine.submitted[-1][1].structured_outputs)
    assert asked[0] is not None
    assert asked[0] == asked[1]


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}"])
async def test_a_model_is_a_card_of_its_kind(http: httpx.AsyncClient, path: str) -> None:
    reply = (await http.get(path)).json()
    card = reply if "data" not in reply else reply["data"][0]
    assert (card["type"], card["id"], card["max_context_length"]) == ("base", MODEL, CONTEXT)
    assert card["capabilities"]["completion_chat"] is True
    assert card["capabilities"]["vision"] is False


async def test_only_a_prompt_of_mistral_s_own_is_refused(http: httpx.AsyncClient) -> None:
    sent = ASKED | {"safe_prompt": False, "prompt_mode": None}
    assert (await http.post(CHAT, json=sent)).status_code == 200
    refused = await http.post(CHAT, json=ASKED | {"safe_prompt": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "safe_prompt")


CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
SAID = f"Wait. {CALL}{CALL}"


async def pieces(http: httpx.AsyncClient, agent: str, **fields: Any) -> list[dict[str, Any]]:
    """What a stream's chunks hold of calls."""
    sent = tool_calls.body(stream=True, **fields)
    reply = await http.post(CHAT, json=sent, headers={"user-agent": agent})
    assert reply.status_code == 200, reply.text
    choices = [choice for chunk in sse.parse(reply.text) for choice in chunk["choices"]]
    words = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert words.startswith("Wait.")
    return [call for choice in choices for call in choice["delta"].get("tool_calls", ())]


async def test_its_clients_get_each_call_in_one_piece(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source, engine.script = tool_calls.HERMES, say(SAID)
    for agent, fields in (
        ("mistral-client-python/3.7.0", {}),
        ("ai/6.0.326 ai-sdk/mistral/3.0.69 runtime/node.js/22", {}),
        ("OpenAI/Python 2.54.0", {"tool_stream": False}),
    ):
        calls = await pieces(http, agent, **fields)
        assert [call["index"] for call in calls] == [0, 1]
        assert len({call["id"] for call in calls}) == 2
        for call in calls:
            assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    for agent, fields in (
        ("OpenAI/Python 2.54.0", {}),
        ("mistral-client-python/3.7.0", {"tool_stream": True}),
    ):
        calls = await pieces(http, agent, **fields)
        assert len(calls) > 2
        assert len([call for call in calls if "name" in call["function"]]) == 2


async def test_a_call_that_is_cut_short_is_shown_at_the_end(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = tool_calls.HERMES
    engine.script = say(f"Wait. {CALL[:-14]}", finish="length")
    [call] = await pieces(http, "mistral-client-python/3.7.0")
    assert call["function"]["name"] == "get_weather"
    assert call["function"]["arguments"].startswith('{"city": "Paris"')
