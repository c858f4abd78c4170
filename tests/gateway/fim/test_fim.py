"""Prompts with a suffix, of a model whose tokens are bytes and three marks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway import sse
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import HELLO, MODEL, FakeEngineClient
from tests.gateway.fim.conftest import MIDDLE, PREFIX, SUFFIX

TEXT, FIM, GENERATE = "/v1/completions", "/v1/fim/completions", "/api/generate"
BEFORE, AFTER = "def f(", "): pass"
ASKED = {"model": MODEL, "prompt": BEFORE, "suffix": AFTER}
WANTED = [PREFIX, *BEFORE.encode(), SUFFIX, *AFTER.encode(), MIDDLE]


@pytest.mark.parametrize("path", [TEXT, FIM, GENERATE])
async def test_what_stands_around_the_gap_is_between_the_models_marks(
    http: httpx.AsyncClient, filling: FakeEngineClient, path: str
) -> None:
    reply = await http.post(path, json={**ASKED, "stream": False})
    assert reply.status_code == 200, reply.text
    prompt, params, _ = filling.submitted[0]
    assert prompt == WANTED
    assert params.stop_token_ids == [PREFIX, SUFFIX, MIDDLE]
    # Texts of marks in a program are text.
    sent = {**ASKED, "prompt": "<|end|>", "suffix": "<|end|>", "stream": False}
    assert (await http.post(path, json=sent)).status_code == 200
    assert filling.submitted[1][0] == [PREFIX, *b"<|end|>", SUFFIX, *b"<|end|>", MIDDLE]


@pytest.mark.parametrize("path", [TEXT, FIM, GENERATE])
@pytest.mark.parametrize("suffix", ["", None])
async def test_without_a_suffix_the_prompt_goes_on(
    http: httpx.AsyncClient, engine: FakeEngineClient, path: str, suffix: str | None
) -> None:
    sent = {**ASKED, "suffix": suffix, "raw": True, "stream": False}
    if path != GENERATE:
        del sent["raw"]
    reply = await http.post(path, json=sent)
    assert reply.status_code == 200, reply.text
    prompt, params, _ = engine.submitted[0]
    assert (bytes(prompt).decode(), params.stop_token_ids) == (BEFORE, None)


@pytest.mark.parametrize("path", [TEXT, FIM, GENERATE])
async def test_a_model_without_such_tokens_says_so(http: httpx.AsyncClient, path: str) -> None:
    for stream in (False, True):
        refused = await http.post(path, json={**ASKED, "stream": stream})
        assert refused.status_code == 400
        assert "suffix: this model's vocabulary has no tokens for filling in" in refused.text


async def test_several_prompts_and_token_ids(
    http: httpx.AsyncClient, filling: FakeEngineClient
) -> None:
    for prompt in ([BEFORE, "x"], [list(BEFORE.encode()), [120]]):
        sent = {**ASKED, "prompt": prompt, "stop_token_ids": [7], "parse_special": True}
        assert (await http.post(TEXT, json=sent)).status_code == 200
        (one, params, _), (other, _, _) = filling.submitted[-2:]
        assert one == WANTED
        assert other == [PREFIX, 120, SUFFIX, *AFTER.encode(), MIDDLE]
        assert params.stop_token_ids == [7, PREFIX, SUFFIX, MIDDLE]
    sent = {**ASKED, "prompt": "a<|end|>", "parse_special": True, "ignore_eos": True}
    assert (await http.post(TEXT, json=sent)).status_code == 200
    prompt, params, _ = filling.submitted[-1]
    assert prompt[:3] == [PREFIX, 97, END]
    assert params.stop_token_ids is None


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TEXT, {"echo": True}, "echo"),
        (FIM, {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        (TEXT, {"prompt": [9999]}, "prompt"),
        (TEXT, {"suffix": "x" * 40_000}, "prompt"),
        (FIM, {"max_tokens": 9999}, "max_tokens"),
    ],
)
async def test_what_cannot_be_is_named(
    http: httpx.AsyncClient,
    filling: FakeEngineClient,
    path: str,
    fields: dict[str, Any],
    param: str,
) -> None:
    refused = await http.post(path, json={**ASKED, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_mistral_s_reply_is_a_chat_s(
    http: httpx.AsyncClient, filling: FakeEngineClient
) -> None:
    sent = {**ASKED, "random_seed": 3, "min_tokens": 1, "stop": ["xyz"], "metadata": None}
    reply = (await http.post(FIM, json=sent)).json()
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"]["content"] == f"{HELLO}0"
    assert (filling.submitted[0][1].seed, filling.submitted[0][1].stop) == (3, ["xyz"])
    streamed = await http.post(FIM, json={**sent, "stream": True})
    chunks = [event for event in sse.parse(streamed.text) if event != "[DONE]"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == f"{HELLO}0"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_lists_of_models_say_who_can(
    http: httpx.AsyncClient, filling: FakeEngineClient
) -> None:
    [card] = (await http.get("/v1/models")).json()["data"]
    assert card["capabilities"]["completion_fim"] is True
    shown = (await http.post("/api/show", json={"model": MODEL})).json()
    assert shown["capabilities"] == ["completion", "insert"]
