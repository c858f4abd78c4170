"""POST /v1/responses: shapes by OpenAI's own SDK, events in their order, what a stateless server
refuses."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.errors import InvalidRequest, RequestFailed
from penstock.request.sampling_params import RepetitionDetectionParams
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import CONTEXT, HELLO, MODEL, FakeEngineClient, say

URL = "/v1/responses"
ANSWER = f"{HELLO}0"


async def refusal(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(URL, json={"input": "Hi"} | fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def events_of(body: str) -> list[dict[str, Any]]:
    """Each event's name is its type, and each is one that the SDK knows."""
    events = []
    assert body.endswith("\n\n")
    for block in body[:-2].split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        TypeAdapter(ResponseStreamEvent).validate_python(event)
        events.append(event)
    return events


async def test_a_response_has_openais_fields(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    fields = {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5}
    reply = (await http.post(URL, json={"input": "Hi", "model": MODEL} | fields)).json()
    Response.model_validate(reply, strict=True)
    [item] = reply["output"]
    assert item["content"] == [
        {"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}
    ]
    assert (item["role"], item["status"], reply["status"]) == (
        "assistant",
        "completed",
        "completed",
    )
    assert reply["usage"] == {
        "input_tokens": len(b"system: Be brief.\nuser: Hi\nassistant:"),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": len(ANSWER.encode()) + 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(b"system: Be brief.\nuser: Hi\nassistant:" + ANSWER.encode()) + 1,
    }
    assert (reply["metadata"], reply["store"], reply["temperature"]) == ({"a": "b"}, True, 0.5)
    assert engine.template.calls[0][0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


async def test_events(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, json={"input": "Hi", "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert deltas > 1
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert "".join(event["delta"] for event in events if "delta" in event) == ANSWER
    last = events[-1]["response"]
    whole = (await http.post(URL, json={"input": "Hi"})).json()
    different = {"id", "created_at", "completed_at", "output"}
    assert {k: v for k, v in last.items() if k not in different} == {
        k: v for k, v in whole.items() if k not in different
    }
    assert last["output"][0]["content"] == whole["output"][0]["content"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finish", ["length", "repetition"])
async def test_an_answer_cut_short_is_incomplete(
    http: httpx.AsyncClient, engine: FakeEngineClient, finish: str, stream: bool
) -> None:
    engine.script = say("cut", finish=finish)
    response = await http.post(URL, json={"input": "Hi", "max_output_tokens": 4, "stream": stream})
    reply = response.json() if not stream else events_of(response.text)[-1]["response"]
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert engine.submitted[0][1].max_tokens == 4


async def test_a_loop_may_end_the_response(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    loop = {"max_pattern_size": 64, "min_pattern_size": 2, "min_count": 5}
    response = await http.post(URL, json={"input": "Hi", "repetition_detection": loop})
    assert response.status_code == 200
    _, params, _ = engine.submitted[0]
    assert params.repetition_detection == RepetitionDetectionParams(**loop)
    wrong = loop | {"min_count": 1}
    response = await http.post(URL, json={"input": "Hi", "repetition_detection": wrong})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "repetition_detection.min_count"


async def test_the_sdk(http: httpx.AsyncClient) -> None:
    client = openai.AsyncOpenAI(api_key="k", base_url="http://gateway/v1", http_client=http)
    reply = await client.responses.create(model=MODEL, input="Hi")
    assert reply.output_text == ANSWER
    assert reply.usage is not None
    text = ""
    async with client.responses.stream(model=MODEL, input="Hi") as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
        final = await stream.get_final_response()
    assert text == final.output_text == ANSWER
    again = [{"role": "user", "content": "Hi"}, *final.model_dump(exclude_none=True)["output"]]
    again.append({"role": "user", "content": [{"type": "input_text", "text": "More"}]})
    reply = await client.responses.create(model=MODEL, input=again)  # type: ignore[arg-type]
    assert reply.status == "completed"


async def test_items(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "id": "m",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
        },
        {"role": "user", "content": "More"},
    ]
    response = await http.post(URL, json={"input": items})
    assert response.status_code == 200, response.text
    assert [m["content"] for m in engine.template.calls[0][0]] == [
        "Be brief.",
        "Hi",
        "Hello",
        "More",
    ]


@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
async def test_text_format(http: httpx.AsyncClient, engine: FakeEngineClient, kind: str) -> None:
    schema = {"type": "object"}
    format = {"type": kind} | ({"name": "n", "schema": schema} if kind == "json_schema" else {})
    reply = (await http.post(URL, json={"input": "Hi", "text": {"format": format}})).json()
    Response.model_validate(reply)
    wanted = engine.submitted[0][1].structured_outputs
    assert wanted is not None
    assert wanted.definition().kind == kind
    engine.refusal = InvalidRequest("bad", param="structured_outputs")
    error = await refusal(http, text={"format": format})
    assert error["param"] == "text.format"


async def test_the_fields_of_vllm_reach_the_engine(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    fields = {
        "stop_token_ids": [5],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "structured_outputs": {"choice": ["yes", "no"]},
    }
    ends = {"ignore_eos": True}
    neutral = {
        "spaces_between_special_tokens": False,
        "previous_input_messages": [],
        "enable_response_messages": False,
        "vllm_xargs": {},
    }
    response = await http.post(URL, json={"input": "Hi", "mm_processor_kwargs": {}, **fields})
    assert response.status_code == 200, response.text
    for more in (ends, neutral, {}):
        response = await http.post(URL, json={"input": "Hi", **more})
        assert response.status_code == 200, response.text
    given, endless, accepted, plain = (params for _, params, _ in engine.submitted)
    assert (endless.ignore_eos, plain.ignore_eos) == (True, False)
    assert given.structured_outputs is not None
    assert given.structured_outputs.choice == ["yes", "no"]
    for name in fields.keys() - {"structured_outputs"}:
        assert getattr(given, name) == fields[name]
        assert getattr(plain, name) != fields[name]
    assert accepted == plain


async def test_structured_outputs_beside_a_text_format_are_refused(
    http: httpx.AsyncClient,
) -> None:
    wanted = {"structured_outputs": {"choice": ["yes"]}}
    error = await refusal(http, text={"format": {"type": "json_object"}}, **wanted)
    assert error["param"] == "structured_outputs"
    assert error["message"].startswith("text.format and structured_outputs both")


async def test_a_response_has_log_probabilities(http: httpx.AsyncClient) -> None:
    body = {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    reply = (await http.post(URL, json=body)).json()
    Response.model_validate(reply)
    first = reply["output"][0]["content"][0]["logprobs"][0]
    assert first["token"] == "H"
    assert len(first["top_logprobs"]) == 2
    events = events_of((await http.post(URL, json=body | {"stream": True})).text)
    streamed = [one for event in events if "delta" in event for one in event["logprobs"]]
    assert streamed == reply["output"][0]["content"][0]["logprobs"]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"background": True}, "background", "needs stored responses"),
        ({"conversation": "c"}, "conversation", "allowed: null"),
        ({"truncation": "middle"}, "truncation", "disabled, auto"),
        ({"include": ["hats"]}, "include", "message.output_text.logprobs"),
        ({"input": None}, "input", "missing"),
        ({"input": []}, "input", "empty"),
        ({"input": [], "instructions": "x"}, "input", "empty"),
        ({"input": [{"role": "bot", "content": "x"}]}, "input[0].role", "user"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        ({"input": [{"content": "x"}]}, "input[0].role", "missing"),
        ({"input": [{"type": "item_reference", "id": "rs_x"}]}, "input", "empty"),
        ({"input": [{"type": "item", "id": "x"}]}, "input[0].type", "message"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]},
            "input[0].content[0]",
            "media are not supported by this model, which takes text only",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "missing"),
        ({"max_output_tokens": CONTEXT}, "max_output_tokens", str(CONTEXT)),
        ({"max_output_tokens": -2}, "max_output_tokens", "not -2"),
        ({"temperature": 101}, "temperature", "[0, 100]"),
        ({"top_logprobs": 21}, "top_logprobs", "[0, 20]"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            "text.format.schema",
            "missing",
        ),
        ({"text": {"verbosity": "loud"}}, "text.verbosity", "low, medium, high"),
        ({"max_tokens": 5}, "max_tokens", "did you mean"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "choice"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "-1"),
        ({"enable_response_messages": True}, "enable_response_messages", "not supported"),
        ({"previous_response": {"id": "x"}}, "previous_response", "not supported"),
    ],
)
async def test_refusals(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, says: str
) -> None:
    error = await refusal(http, **fields)
    assert error["param"] == param, error
    assert says in error["message"]


async def test_the_reply_has_the_fields_that_clients_insist_on(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    asked = {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "max_tool_calls": 2,
        "safety_identifier": "s",
        "prompt_cache_key": "k",
    }
    reply = (await http.post(URL, json={"input": "Hi", **asked})).json()
    assert {name: reply[name] for name in asked} == asked
    assert reply["id"].startswith("resp_")
    assert reply["created_at"] <= reply["completed_at"] <= time.time()
    assert reply["output"][0]["id"].startswith("msg_" + reply["id"].removeprefix("resp_"))
    engine.script = say("cut", finish="length")
    reply = (await http.post(URL, json={"input": "Hi"})).json()
    defaults = (0.0, 0.0, None, None, None)
    assert tuple(reply[name] for name in asked) == defaults
    assert reply["completed_at"] is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestFailed("the worker gave up"), "server_error"),
        (InvalidRequest("bad", param="structured_outputs"), "invalid_prompt"),
    ],
)
async def test_an_error_in_a_stream_is_two_typed_events(
    http: httpx.AsyncClient, engine: FakeEngineClient, error: Exception, code: str
) -> None:
    engine.script = lambda prompt, params: iter(
        [[SequenceDelta(index=0, text="So", token_ids=[83, 111])], error]
    )
    events = events_of((await http.post(URL, json={"input": "Hi", "stream": True})).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    told, failed = events[-2:]
    assert (told["type"], failed["type"]) == ("error", "response.failed")
    assert told["message"] == str(error)
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": code, "message": str(error)}
    assert (failed["response"]["completed_at"], failed["response"]["usage"]) == (None, None)


async def test_an_error_behind_a_keep_alive_is_an_event(engine: FakeEngineClient) -> None:
    """Before there is a response: the headers are sent, and nothing else."""
    release = asyncio.Event()

    async def rendered(*args: Any, **kwargs: Any) -> Any:
        await release.wait()
        raise InvalidRequest("the template refuses it", param="messages")

    engine.template.rendered = rendered
    config = GatewayConfig(keepalive_interval=0.01)
    app = create_app(engine, config)  # type: ignore[arg-type]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if b": ping" in message.get("body", b""):
            release.set()

    bodies = iter([{"type": "http.request", "body": b'{"input":"Hi","stream":true}'}])

    async def receive() -> Any:
        return next(bodies, None) or await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "path": URL, "query_string": b"", "headers": []}
    await app(scope, receive, send)
    assert sent[0]["status"] == 200
    text = b"".join(message.get("body", b"") for message in sent).decode()
    [event] = events_of(text.replace(": ping\n", ""))
    assert (event["type"], event["param"]) == ("error", "input")
    assert event["message"] == "the template refuses it"


async def test_what_has_no_effect_is_accepted_and_the_reply_says_so(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    fields = {
        "store": True,
        "truncation": "auto",
        "text": {"verbosity": "low"},
        "reasoning": {"summary": "detailed"},
        "max_tool_calls": 3,
        "access_programs": {"cyber": "standard"},
        "background_options": {"completion_window": "8h"},
        "image": {"context_compression": "auto"},
    }
    response = await http.post(URL, json={"input": "Hi", **fields})
    assert response.status_code == 200, response.text
    reply = response.json()
    Response.model_validate(reply, strict=True)
    assert (reply["store"], reply["truncation"]) == (True, "auto")
    await http.post(URL, json={"input": "Hi"})
    (one, _, _), (other, _, _) = engine.submitted
    assert one == other
    assert engine.submitted[0][1] == engine.submitted[1][1]


async def test_an_error_names_the_item_behind_the_instructions(http: httpx.AsyncClient) -> None:
    items = [{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "x"}]}]
    error = await refusal(http, instructions="y", input=items)
    assert error["param"] == "input[1].content[0].type"
