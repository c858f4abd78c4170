"""What can mean only one thing: fields that are null, as generated SDKs send all that they know,
and whole numbers with a point."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from penstock_gateway.adapters.endpoint import LoadAdapterRequest
from penstock_gateway.chat.endpoint import ChatRequest
from penstock_gateway.request.decoding import convert, decode
from penstock_gateway.responses.request import ResponsesRequest
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.request.test_unknown_fields import BODIES, places

JSON = "application/json"
NOTHING = {"mirostat": None, "guardrails": None, "prompt_mode": None}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": {"default": None}}}},
}
POSTED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/responses", {"input": "a"}),
    ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
    ("/api/chat", {"model": "org/tiny-model", "messages": [{"role": "user", "content": "a"}]}),
    ("/api/generate", {"model": "org/tiny-model", "prompt": "a"}),
    ("/tokenize", {"prompt": "a"}),
]


def with_nulls(body: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    changed = json.loads(json.dumps(body))
    at = changed
    for step in path:
        at = at[step]
    at.update(NOTHING)
    return changed


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_at_any_depth_they_are_as_if_absent(kind: Any, body: dict[str, Any]) -> None:
    decoder = msgspec.json.Decoder(kind)
    plain = decoder.decode(json.dumps(body).encode())
    for path in places(body):
        sent = with_nulls(body, path)
        assert decode(json.dumps(sent).encode(), decoder) == plain, path
        assert convert(sent, kind) == plain, path


@pytest.mark.parametrize(("url", "body"), POSTED)
async def test_an_endpoint_takes_them(
    http: httpx.AsyncClient, engine: FakeEngineClient, url: str, body: dict[str, Any]
) -> None:
    plain = await http.post(url, json=body)
    sent = await http.post(url, json=body | NOTHING)
    assert (sent.status_code, plain.status_code) == (200, 200), sent.text
    asked = [prompt for prompt, _, _ in engine.submitted]
    assert asked[::2] == asked[1::2]
    wrong = await http.post(url, json=NOTHING | body | {"mirostat_tau": 5})
    if url.startswith("/api/"):  # Ollama skips what it doesn't know.
        assert wrong.status_code == 200
        return
    assert wrong.status_code == 400
    assert "mirostat_tau" in wrong.text
    assert "guardrails" not in wrong.text


def test_what_is_free_keeps_its_nulls() -> None:
    body = {
        "messages": [
            {"role": "user", "content": None, **NOTHING},
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
        ],
        "tools": [TOOL],
        "chat_template_kwargs": {"a": None},
        **NOTHING,
    }
    made = decode(json.dumps(body).encode(), msgspec.json.Decoder(ChatRequest))
    assert made.tools is not None
    assert made.tools[0].function.parameters == TOOL["function"]["parameters"]  # type: ignore[index]
    assert made.chat_template_kwargs == {"a": None}


def test_a_field_with_a_default_takes_it() -> None:
    for kind, body in (
        (LoadAdapterRequest, {"lora_name": "a", "lora_path": "b", "load_inplace": None}),
        (ChatRequest, {"messages": [], "tools": [{**TOOL, "type": None}]}),
        (ResponsesRequest, {"input": [{"role": "user", "content": [{"type": None, "text": "a"}]}]}),
    ):
        sent = msgspec.json.encode(body)
        made = decode(sent, msgspec.json.Decoder(kind))
        kept = msgspec.json.encode(body).replace(b',"load_inplace":null', b"")
        kept = kept.replace(b'"type":null', b'"type":"function"' if kind is ChatRequest else b"")
        assert made == msgspec.json.decode(kept.replace(b"{,", b"{"), type=kind)


def test_what_is_required_is_missed_by_its_own_name() -> None:
    with pytest.raises(Exception, match="messages"):
        decode(b'{"messages": null, "mirostat": null}', msgspec.json.Decoder(ChatRequest))


async def test_whole_numbers_may_have_a_point(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    url, body = POSTED[0]
    numbers = {"max_tokens": 5, "seed": 7, "top_k": 40, "n": 2, "top_logprobs": 1, "logprobs": True}
    sent = {key: value if value is True else float(value) for key, value in numbers.items()}
    for fields in (numbers, sent):
        assert (await http.post(url, json=body | fields)).status_code == 200
    (_, one, _), (_, other, _) = engine.submitted
    assert one == other
    for value in (5.5, "5", 1e30):
        refused = await http.post(url, json=body | {"max_tokens": value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


async def test_a_number_that_is_too_large_is_told_by_its_field(http: httpx.AsyncClient) -> None:
    url, body = POSTED[0]
    for field, value in (
        ("temperature", "1e400"),
        ("max_tokens", "1" + "0" * 400),
        ("logit_bias", '{"5": -1e999}'),
    ):
        plain = json.dumps(body)[:-1] + f', "{field}": {value}'
        for sent in (plain + "}", plain + ', "guardrails": null}'):
            refused = await http.post(url, content=sent, headers={"content-type": JSON})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"].startswith(field), refused.text


async def test_a_large_body_is_taken_alike(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_gateway.request.endpoint.LARGE", 100_000)
    body = {"prompt": "a", "metadata": {"a": "b" * 190_000}}
    assert (await http.post("/v1/completions", json=body | NOTHING)).status_code == 200
    refused = await http.post("/v1/completions", json=NOTHING | body | {"mirostat_tau": 5})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "mirostat_tau")
