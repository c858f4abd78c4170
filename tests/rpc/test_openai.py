"""penstock.v1.OpenAI: the same JSON as over HTTP."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from penstock_rpc.protos.openai_pb2 import JsonReply, JsonRequest, PostRequest
from tests.gateway.fake_engine import HELLO
from tests.rpc.conftest import Serving

CHAT = "/penstock.v1.OpenAI/Chat"
MESSAGES = [{"role": "user", "content": "Hi"}]


async def documents(serving: Serving, path: str, message: Any) -> list[dict[str, Any]]:
    found = []
    async for reply in serving.stream(path, message, JsonReply):
        found += [json.loads(each) for each in reply.json]
    return found


def body(**fields: Any) -> JsonRequest:
    return JsonRequest(json=json.dumps(fields).encode())


async def test_chat_whole_and_streamed(serving: Serving) -> None:
    (whole,) = await documents(serving, CHAT, body(messages=MESSAGES))
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["content"] == f"{HELLO}0"
    options = {"include_usage": True}
    chunks = await documents(
        serving, CHAT, body(messages=MESSAGES, stream=True, stream_options=options)
    )
    texts = [each["choices"][0]["delta"].get("content") or "" for each in chunks[:-1]]
    assert "".join(texts) == f"{HELLO}0"
    assert chunks[-1]["usage"] == whole["usage"]


async def test_completions_and_any_other_path(serving: Serving) -> None:
    (whole,) = await documents(serving, "/penstock.v1.OpenAI/Complete", body(prompt="Hi"))
    assert whole["choices"][0]["text"] == f"{HELLO}0"
    post = PostRequest(path="/tokenize", json=b'{"prompt": "Hi"}')
    (tokens,) = await documents(serving, "/penstock.v1.OpenAI/Post", post)
    assert tokens["tokens"] == [72, 105]
    post = PostRequest(
        path="/v1/messages",
        json=json.dumps({"messages": MESSAGES, "max_tokens": 9, "stream": True}).encode(),
    )
    events = await documents(serving, "/penstock.v1.OpenAI/Post", post)
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    post = PostRequest(
        path="/api/chat", json=json.dumps({"model": "?", "messages": MESSAGES}).encode()
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await documents(serving, "/penstock.v1.OpenAI/Post", post)
    assert refused.value.code().name in ("NOT_FOUND", "INVALID_ARGUMENT")


async def test_lines_of_json(serving: Serving) -> None:
    model = serving.engine.welcome.model
    post = PostRequest(
        path="/api/chat", json=json.dumps({"model": model, "messages": MESSAGES}).encode()
    )
    lines = await documents(serving, "/penstock.v1.OpenAI/Post", post)
    assert "".join(each["message"]["content"] for each in lines) == f"{HELLO}0"
    assert lines[-1]["done"] is True


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("v1/completions", "INVALID_ARGUMENT"),
        ("/v1/completions?x=1", "INVALID_ARGUMENT"),
        ("/v1/" + "x" * 300, "INVALID_ARGUMENT"),
        ("/v1/../v1/completions", "NOT_FOUND"),
        ("/nowhere", "NOT_FOUND"),
        ("/version", "UNIMPLEMENTED"),
        ("/vllm.Control/Abort", "INVALID_ARGUMENT"),
    ],
)
async def test_paths_that_are_refused(serving: Serving, path: str, code: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await documents(serving, "/penstock.v1.OpenAI/Post", PostRequest(path=path, json=b"{}"))
    assert refused.value.code().name == code


async def test_bad_json_is_refused_as_over_http(serving: Serving) -> None:
    for sent in (b"", b"{", b"[]", b'{"messages": 1}', b'{"temprature": 1}'):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await documents(serving, CHAT, JsonRequest(json=sent))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        told = dict(refused.value.trailing_metadata())["penstock-error-bin"]
        assert json.loads(told)["type"] == "invalid_request_error"
