"""POST /v1/messages: shapes by Anthropic's own SDK, events in their order, conversations as a
template sees them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from penstock.client import SequenceDelta
from penstock.request.sampling_params import RepetitionDetectionParams
from tests.dialects.anthropic.asking import (
    ANSWER,
    ARGUMENTS,
    COUNT,
    FOUND,
    HERMES,
    SOURCE,
    WEATHER,
    budget,
    client_of,
    events_of,
    refusal,
    said,
    user,
    whole,
)
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import CONTEXT, MODEL, FakeEngineClient

pytestmark = pytest.mark.timeout(300)

FORM = {"type": "json_schema", "schema": WEATHER["input_schema"]}


async def test_a_message_has_anthropics_fields(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    reply = await whole(http, system="Be brief.", temperature=0.5, top_k=3, metadata={"a": "b"})
    assert reply["content"] == [{"type": "text", "text": ANSWER}]
    assert (reply["role"], reply["stop_reason"], reply["model"]) == ("assistant", "end_turn", MODEL)
    assert reply["usage"] == {
        "input_tokens": len(b"system: Be brief.\nuser: Hi\nassistant:"),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": len(ANSWER.encode()) + 1,
    }
    _, params, _ = engine.submitted[0]
    assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 3, 64)


async def test_events_are_those_of_the_whole_reply(http: httpx.AsyncClient) -> None:
    reply = await whole(http)
    events = await events_of(http)
    assert [event["type"] for event in events[:2]] == ["message_start", "content_block_start"]
    assert [event["type"] for event in events[-3:]] == [
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert [text] == [block["text"] for block in reply["content"]]
    assert events[0]["message"]["usage"]["input_tokens"] == reply["usage"]["input_tokens"]
    assert events[-2]["usage"] == reply["usage"]
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["delta"] == ended | {"stop_details": None, "container": None}
    assert reply["stop_details"] is reply["container"] is None
    assert events[0]["message"]["container"] is None


@pytest.mark.parametrize("feeds", [True, False])
async def test_a_stream_says_the_same_of_its_prompt_at_both_ends(
    http: httpx.AsyncClient, engine: FakeEngineClient, feeds: bool
) -> None:
    engine.cached, engine.feeds = 3, feeds
    usage = (await whole(http))["usage"]
    assert usage["cache_read_input_tokens"] == 3
    events = await events_of(http)
    begun, ended = events[0]["message"]["usage"], events[-2]["usage"]
    for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert begun[name] == ended[name] == usage[name]
    assert (begun["output_tokens"], ended["output_tokens"]) == (0, usage["output_tokens"])


@pytest.mark.parametrize(
    ("finish", "stopped_by", "max_tokens", "expected"),
    [
        ("length", None, 64, ("max_tokens", None)),
        ("length", None, 2 * CONTEXT, ("model_context_window_exceeded", None)),
        ("repetition", None, 64, ("max_tokens", None)),
        ("repetition", None, 2 * CONTEXT, ("max_tokens", None)),
        ("stop", "END", 64, ("stop_sequence", "END")),
        ("stop", None, 64, ("end_turn", None)),
    ],
)
async def test_why_it_stopped(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    finish: str,
    stopped_by: str | None,
    max_tokens: int,
    expected: tuple[str, str | None],
) -> None:
    engine.script = said("Once upon a time", finish=finish, stopped_by=stopped_by)
    reply = await whole(http, max_tokens=max_tokens, stop_sequences=["END"])
    assert (reply["stop_reason"], reply["stop_sequence"]) == expected
    [delta] = [
        event["delta"]
        for event in await events_of(http, max_tokens=max_tokens)
        if event["type"] == "message_delta"
    ]
    assert (delta["stop_reason"], delta["stop_sequence"]) == expected


async def test_a_loop_may_end_the_message(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    loop = {"max_pattern_size": 64, "min_pattern_size": 2, "min_count": 5}
    await whole(http, repetition_detection=loop)
    _, params, _ = engine.submitted[0]
    assert params.repetition_detection == RepetitionDetectionParams(**loop)
    message = await refusal(http, repetition_detection=loop | {"min_count": 1})
    assert "repetition_detection.min_count must be a whole number in [2, " in message


async def test_more_tokens_than_the_context_has_are_what_it_has(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    await whole(http, max_tokens=32_000)
    [(prompt, params, _)] = engine.submitted
    assert params.max_tokens == CONTEXT - len(prompt)


async def test_calls_and_their_results(engine: FakeEngineClient) -> None:
    engine.script = said(HERMES)
    async with client_of(engine, enable_auto_tool_choice=True, tool_call_parser="hermes") as http:
        reply = await whole(http, tools=[WEATHER])
        text, call = reply["content"]
        assert (text["text"], reply["stop_reason"]) == ("Let me look.", "tool_use")
        assert (call["type"], call["name"]) == ("tool_use", "get_weather")
        assert call["input"] == json.loads(ARGUMENTS)
        events = await events_of(http, tools=[WEATHER])
        pieces = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        partial = "".join(p["partial_json"] for p in pieces if p["type"] == "input_json_delta")
        assert json.loads(partial) == call["input"]
        assert [e["index"] for e in events if e["type"] == "content_block_start"] == [0, 1]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "Rain."}
        history = [
            user("Hi"),
            {"role": "assistant", "content": reply["content"]},
            user([result, {"type": "text", "text": "And tomorrow?"}]),
        ]
        await whole(http, tools=[WEATHER], messages=history)
    seen, variables = engine.template.calls[-1]
    assert [message["role"] for message in seen] == ["user", "assistant", "tool", "user"]
    [sent] = seen[1]["tool_calls"]
    assert (sent["id"], sent["function"]["arguments"]) == (call["id"], call["input"])
    assert (seen[2]["tool_call_id"], seen[2]["content"]) == (call["id"], "Rain.")
    assert variables["tools"][0]["function"]["parameters"] == WEATHER["input_schema"]


@pytest.mark.usefixtures("prepared_here")
async def test_as_many_tools_as_agents_with_several_servers_have(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    bare = {"input_schema": {"type": "object"}}
    tools = [{**bare, "name": f"mcp__{'server' * 10}__tool_{n}"} for n in range(188)]
    await whole(http, tools=tools)
    assert len(engine.template.calls[-1][1]["tools"]) == 188
    count = await http.post(COUNT, json={"model": MODEL, "messages": [user("Hi")], "tools": tools})
    assert count.status_code == 200, count.text
    assert "1 to 128" in await refusal(http, tools=[{**WEATHER, "name": "x" * 129}])


async def test_a_forced_call(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.script = said(ARGUMENTS)
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    reply = await whole(http, tools=[WEATHER], tool_choice=choice)
    [call] = reply["content"]
    assert (call["name"], call["input"]) == ("get_weather", json.loads(ARGUMENTS))
    assert reply["stop_reason"] == "tool_use"
    _, params, _ = engine.submitted[0]
    assert params.structured_outputs is not None
    engine.script = said('{"city": "Zür', finish="length")
    cut = await whole(http, tools=[WEATHER], tool_choice=choice)
    assert cut["content"][0]["input"] == {"INVALID_JSON": '{"city": "Zür'}
    assert cut["stop_reason"] == "max_tokens"


async def test_thoughts(engine: FakeEngineClient) -> None:
    engine.script = said("<think>A river.</think>Seine")
    async with client_of(engine, reasoning_parser="deepseek_r1") as http:
        reply = await whole(http, thinking=budget(1024), max_tokens=1025)
        thoughts, text = reply["content"]
        assert (thoughts["thinking"].strip(), text["text"].strip()) == ("A river.", "Seine")
        events = await events_of(http)
        kinds = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
        assert kinds == ["thinking", "text"]
        # Clients leave out thoughts without a signature, or send them as the user's words.
        assert thoughts["signature"]
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        *_, last = [delta for delta in deltas if delta["type"] != "text_delta"]
        assert last == {"type": "signature_delta", "signature": thoughts["signature"]}
        history = [user("Hi"), {"role": "assistant", "content": reply["content"]}, user("More")]
        await whole(http, messages=history)
    assert engine.template.calls[0][1]["enable_thinking"] is True
    assert engine.template.calls[-1][0][1]["reasoning_content"].strip() == "A river."


async def test_turns_of_the_same_role_become_one(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B", "cache_control": {}}]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    await whole(http, system=system, messages=[user("Hi"), user(parts)])
    seen, _ = engine.template.calls[-1]
    assert [(m["role"], m["content"]) for m in seen] == [
        ("system", "Be brief."),
        ("user", "Hi\nA\nB"),
    ]


async def test_an_answer_that_was_begun_is_continued(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    await whole(http, messages=[user("Hi"), {"role": "assistant", "content": "The best is ("}])
    prompt, _, _ = engine.submitted[0]
    assert bytes(prompt).endswith(b"assistant: The best is (")


async def test_an_empty_answer_can_be_sent_back(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = lambda *_: [[SequenceDelta(index=0, token_ids=[END], finish_reason="stop")]]
    reply = await whole(http)
    assert (reply["content"], reply["stop_reason"]) == ([], "end_turn")
    kinds = [event["type"] for event in await events_of(http)]
    assert kinds == ["message_start", "message_delta", "message_stop"]
    history = [user("Hi"), {"role": "assistant", "content": reply["content"]}, user("Well?")]
    await whole(http, messages=history)
    seen, _ = engine.template.calls[-1]
    assert [(m["role"], m["content"]) for m in seen] == [
        ("user", "Hi"),
        ("assistant", ""),
        ("user", "Well?"),
    ]


async def test_the_answer_follows_a_schema(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    await whole(http, output_config={"format": FORM, "effort": "low"})
    assert engine.template.calls[-1][1]["reasoning_effort"] == "low"
    await whole(http, output_format=FORM)  # As it was called in the beta.
    (_, params, _), (_, older, _) = engine.submitted
    assert params.structured_outputs is not None
    assert params.structured_outputs == older.structured_outputs


async def test_tokens_are_counted(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    fields = {"model": MODEL, "system": "Be brief.", "messages": [user("Hi")]}
    reply = await http.post(COUNT, json=fields)
    assert reply.json() == {"input_tokens": len(b"system: Be brief.\nuser: Hi\nassistant:")}
    assert not engine.submitted
    wrong = await http.post(COUNT, json={"messages": []})
    assert wrong.json()["error"]["type"] == "invalid_request_error"


PICTURE = {"type": "base64", "media_type": "image/png", "data": "aaaa"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens is missing or below 1"),
        ({"messages": []}, "messages is missing or empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user([])]}, "messages[0].content is empty"),
        (
            {"messages": [user("a"), {"role": "assistant", "content": "b"}, user([])]},
            "messages[2].content is empty",
        ),
        ({"messages": [user([{"type": "video"}])]}, "messages[0].content[0].type"),
        ({"messages": [user([{"type": "tool_result"}])]}, "content[0].tool_use_id is missing"),
        ({"messages": [user([{"type": "image", "source": {"type": "file"}}])]}, ".source must be"),
        (
            {"messages": [user("a"), user([{"type": "image", "source": PICTURE}])]},
            "messages[1].content[0] is a picture",
        ),
        ({"messages": [user("a"), user("")]}, None),
        ({"temperature": -1.0}, "temperature"),
        ({"stop_sequences": ["x" * 5000]}, "stop_sequences"),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools[0].type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "without a name"),
        ({"tools": [{"name": "no name"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": budget(-5), "max_tokens": 4096}, "thinking.budget_tokens is -5; it must"),
        ({"thinking": budget(1023), "max_tokens": 4096}, "must be at least 1024"),
        ({"thinking": budget(4096), "max_tokens": 4096}, "below max_tokens, 4096"),
        ({"thinking": budget(4096), "max_tokens": 4096, "tools": [WEATHER]}, None),
        ({"container": "c"}, "container"),
        ({"thread": {"type": "continue", "thread_id": "t"}}, "thread is"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_format": {"type": "xml"}}, "output_format has type"),
        ({"output_format": FORM, "output_config": {"format": FORM}}, "send only the latter"),
        ({"colour": "red"}, "colour"),
        ({"messages": [user([{"type": "search_result", "source": "x"}])]}, "title is missing"),
        ({"messages": [user([{**FOUND, "content": "x"}])]}, "must be a list of text blocks"),
        ({"messages": [user([{**FOUND, "source": SOURCE}])]}, "source of a search_result must be"),
        ({"messages": [user([{"type": "image", "source": "x"}])]}, "source must be of type base64"),
    ],
)
async def test_a_wrong_field_of_messages_is_named(
    http: httpx.AsyncClient, fields: dict[str, Any], words: str | None
) -> None:
    if words is None:
        await whole(http, **fields)
        return
    said = await refusal(http, **fields)
    assert said.startswith("invalid_request_error: ")
    assert words in said


@pytest.mark.parametrize("in_result", [False, True])
async def test_search_results_are_texts_with_their_source(
    http: httpx.AsyncClient, engine: FakeEngineClient, in_result: bool
) -> None:
    blocks: list[dict[str, Any]] = [FOUND]
    before: list[dict[str, Any]] = []
    if in_result:
        call = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}
        before = [user("Hi"), {"role": "assistant", "content": [call]}]
        blocks = [{"type": "tool_result", "tool_use_id": "t1", "content": [FOUND]}]
    await whole(http, messages=[*before, user(blocks)])
    assert "Rivers (https://e.org)\nThe Rhine.\nThe Po." in bytes(engine.submitted[0][0]).decode()


async def test_a_found_tool_is_told_by_its_name(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    """What Claude Code's search for tools returns; the model is shown all of them anyway."""
    call = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}
    found = {"type": "tool_reference", "tool_name": "mcp__git__log"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [found]}
    said = [user("Hi"), {"role": "assistant", "content": [call]}, user([result])]
    await whole(http, messages=said)
    assert "mcp__git__log" in bytes(engine.submitted[0][0]).decode()
    del found["tool_name"]
    assert "tool_name is missing" in await refusal(http, messages=said)
