"""usage says how many tokens were thoughts: counted by ids, so the same whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from penstock.client import SequenceDelta
from tests.gateway import sse
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import FakeEngineClient

CLOSE = 255
"""The fake tokenizer's token for </think>."""
MESSAGES = [{"role": "user", "content": "Hi"}]
THOUGHT = [*b"<think>", *b"hm", CLOSE]
CASES = [
    ([*THOUGHT, *b"Yes", END], len(THOUGHT)),
    ([*b"<think>hm"], len(b"<think>hm")),
    ([*b"Yes", END], 0),
    ([*b"Yes", CLOSE, END], 0),
]
"""Token ids, and how many are thoughts."""


def text_of(token: int) -> str:
    marks = {CLOSE: "</think>", END: ""}
    return marks[token] if token in marks else chr(token)


@pytest.fixture
def thinker(engine: FakeEngineClient) -> FakeEngineClient:
    tokenizer = engine.text.tokenizer
    plain = tokenizer.encode

    def encode(text: str, **options: Any) -> list[int]:
        return [CLOSE] if text == "</think>" else plain(text, **options)

    tokenizer.encode = encode
    engine.template.source = "<think></think>"
    return engine


def says(engine: FakeEngineClient, ids: list[int], size: int) -> None:
    """The engine answers with these tokens, so many at once."""
    pieces = [ids[at : at + size] for at in range(0, len(ids), size)]
    deltas = [
        SequenceDelta(index=0, text="".join(map(text_of, piece)), token_ids=piece)
        for piece in pieces
    ]
    deltas[-1].finish_reason = "stop" if END in ids else "length"
    engine.script = lambda prompt, params: iter([[delta] for delta in deltas])


@pytest.mark.parametrize(("ids", "thoughts"), CASES)
@pytest.mark.parametrize("size", [1, 2, 5, 100])
async def test_thoughts_are_counted_whole_and_streamed(
    http: httpx.AsyncClient, thinker: FakeEngineClient, ids: list[int], thoughts: int, size: int
) -> None:
    says(thinker, ids, size)
    url, body = "/v1/chat/completions", {"messages": MESSAGES}
    whole = (await http.post(url, json=body)).json()["usage"]
    assert whole["completion_tokens_details"]["reasoning_tokens"] == thoughts
    assert whole["completion_tokens"] == len(ids)
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = await http.post(url, json=body | {"stream": True, "stream_options": options})
    usages = [chunk["usage"] for chunk in sse.parse(answer.text)]
    assert usages[-1] == whole
    counts = [usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages]
    assert counts == sorted(counts)
    url, body = "/v1/responses", {"input": "Hi"}
    details = (await http.post(url, json=body)).json()["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": thoughts}
    last = (await http.post(url, json=body | {"stream": True})).text.strip().split("\n")[-1]
    usage = json.loads(last.removeprefix("data: "))["response"]["usage"]
    assert usage["output_tokens_details"] == details


async def test_each_choice_counts(http: httpx.AsyncClient, thinker: FakeEngineClient) -> None:
    def script(prompt: list[int], params: Any) -> Any:
        for index, ids in enumerate((THOUGHT, [*b"No"], THOUGHT)):
            text = "".join(map(text_of, ids))
            yield [SequenceDelta(index=index, text=text, token_ids=ids, finish_reason="stop")]

    thinker.script = script
    reply = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "n": 3})
    details = reply.json()["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == 2 * len(THOUGHT)


async def test_a_tag_of_several_tokens_is_not_counted(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.template.source = "<think></think>"
    says(engine, THOUGHT, 1)
    reply = (await http.post("/v1/chat/completions", json={"messages": MESSAGES})).json()
    assert reply["choices"][0]["message"]["reasoning_content"] == "hm"
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
