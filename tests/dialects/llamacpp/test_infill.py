"""What llama.cpp's editor plugins ask: /infill, and how long a conversation's prompt is."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway import sse
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import CONTEXT, HELLO, FakeEngineClient, say
from tests.gateway.fim.conftest import FILE, MIDDLE, PREFIX, REPOSITORY, SUFFIX

INFILL = "/infill"
ASKED = {"input_prefix": "a\n", "prompt": "f(", "input_suffix": ")\n"}
WANTED = [PREFIX, *b"a\nf(", SUFFIX, *b")\n", MIDDLE]
VIM: dict[str, Any] = {
    **ASKED,
    "id_slot": 0,
    "input_extra": [],
    "n_predict": 128,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.9,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 250,
}
"""llama.vim's request, but for response_fields."""
DONE = "data: [DONE]\n\n"


def _events(reply: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream that ends as llama.cpp's own do: with its last one."""
    assert DONE not in reply.text
    return sse.parse(reply.text + DONE)


async def test_what_stands_around_the_cursor_is_between_the_models_marks(
    http: httpx.AsyncClient, filling: FakeEngineClient
) -> None:
    reply = await http.post(INFILL, json=VIM)
    assert reply.status_code == 200, reply.text
    prompt, params, _ = filling.submitted[0]
    assert (prompt, params.max_tokens, params.temperature) == (WANTED, 128, 0.0)
    assert (params.top_k, params.top_p, params.stop_token_ids) == (40, 0.9, [257, 258, 259])
    shown = reply.json()
    assert (shown["content"], shown["stop"], shown["stop_type"]) == (f"{HELLO}0", True, "eos")
    assert shown["tokens_evaluated"] == len(WANTED)
    assert shown["timings"]["prompt_n"] == len(WANTED)
    assert shown["timings"]["predicted_n"] == shown["tokens_predicted"] > 0
    assert (shown["index"], shown["id_slot"], shown["tokens"]) == (0, 0, [])


async def test_only_the_wanted_fields_are_shown(
    http: httpx.AsyncClient, filling: FakeEngineClient
) -> None:
    wanted = ["content", "timings/predicted_n", "truncated", "timings/none", "content/x", ""]
    reply = await http.post(INFILL, json={**VIM, "response_fields": wanted})
    assert list(reply.json()) == ["content", "timings/predicted_n", "truncated"]
    reply = await http.post(INFILL, json={**VIM, "response_fields": [""]})
    assert reply.json() == {}


async def test_a_stream_ends_with_the_whole_story(
    http: httpx.AsyncClient, filling: FakeEngineClient
) -> None:
    filling.script = say("one\ntwo", finish="stop", stop_reason="\n\n")
    reply = await http.post(INFILL, json={**ASKED, "stream": True})
    *pieces, last = _events(reply)
    assert pieces
    assert "".join(piece["content"] for piece in pieces) == "one\ntwo0"
    assert {piece["stop"] for piece in pieces} == {False}
    assert (last["content"], last["stop"], last["stop_type"]) == ("", True, "word")
    assert last["stopping_word"] == "\n\n"
    assert last["tokens_predicted"] == pieces[-1]["tokens_predicted"]


async def test_other_files_stand_in_front_as_the_model_was_taught(
    http: httpx.AsyncClient, knowing: FakeEngineClient
) -> None:
    files = [{"text": "x = 1", "filename": "x.py", "time": 17}, {"text": "<|end|>"}]
    sent = {**VIM, "input_extra": files, "n_predict": 8}
    reply = await http.post(INFILL, json=sent)
    assert reply.status_code == 200, reply.text
    prompt, _, _ = knowing.submitted[0]
    assert prompt == [
        REPOSITORY,
        *b"repository\n",
        FILE,
        *b"x.py\nx = 1",
        FILE,
        *b"file\n<|end|>",
        FILE,
        *b"file\n",
        *WANTED,
    ]
    assert reply.json()["truncated"] is False


async def test_files_without_marks_are_text(
    http: httpx.AsyncClient, filling: FakeEngineClient
) -> None:
    files = [{"text": "x = 1", "filename": "x.py"}]
    await http.post(INFILL, json={**ASKED, "n_predict": 8, "input_extra": files})
    assert filling.submitted[0][0] == [*b"x.py\nx = 1\n\n", *WANTED]


async def test_the_nearest_files_stay_where_there_is_no_room_for_all(
    http: httpx.AsyncClient, knowing: FakeEngineClient
) -> None:
    files = [{"text": letter * 150, "filename": ""} for letter in "abcd"]
    sent = {**ASKED, "input_extra": files, "n_predict": 50}
    reply = await http.post(INFILL, json=sent)
    prompt, params, _ = knowing.submitted[0]
    assert [prompt.count(ord(letter)) // 150 for letter in "bcd"] == [0, 1, 1]
    assert params.max_tokens == 50
    assert len(prompt) + 50 <= CONTEXT
    assert reply.json()["truncated"] is True


async def test_a_prompt_is_computed_ahead_without_an_answer(
    http: httpx.AsyncClient, knowing: FakeEngineClient
) -> None:
    """What both plugins send when they collect pieces of files."""
    ahead = {"input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "samplers": []}
    files = [{"text": "x = 1", "filename": "x.py"}]
    shown = (await http.post(INFILL, json={**ahead, "input_extra": files})).json()
    assert (shown["content"], shown["tokens_predicted"]) == ("", 0)
    assert (await http.post(INFILL, json={**VIM, "input_extra": files})).status_code == 200
    (first, params, _), (second, _, _) = knowing.submitted
    assert params.max_tokens == 1
    shared = first.index(PREFIX)
    assert first[: shared + 1] == second[: shared + 1]


async def test_several_answers_are_a_list(
    http: httpx.AsyncClient, filling: FakeEngineClient
) -> None:
    reply = await http.post(INFILL, json={**VIM, "n_cmpl": 3})
    assert [each["content"] for each in reply.json()] == [f"{HELLO}{i}" for i in range(3)]
    assert [each["index"] for each in reply.json()] == [0, 1, 2]
    assert (filling.submitted[0][1].n, filling.submitted[0][1].temperature) == (3, 0.8)


async def test_the_end_of_an_indented_answer_is_told(
    http: httpx.AsyncClient, filling: FakeEngineClient
) -> None:
    filling.script = say("x\n    y", stop_reason="")
    for stream in (False, True):
        reply = await http.post(INFILL, json={**VIM, "stream": stream})
        events = _events(reply) if stream else [reply.json()]
        assert "".join(event["content"] for event in events) == "x\n    y0"
        assert events[-1]["stop_type"] == "limit"
        assert filling.submitted[-1][1].min_indentation == 4


async def test_a_model_without_marks_goes_on_with_what_is_in_front(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    reply = await http.post(INFILL, json={"input_prefix": "a", "prompt": "b", "n_predict": -1})
    assert reply.status_code == 200, reply.text
    assert engine.submitted[0][0] == [*b"ab"]
    refused = await http.post(INFILL, json=VIM)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input_suffix"
    assert "input_suffix: this model's vocabulary has no tokens for filling in" in refused.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": "x" * CONTEXT}, "input_prefix"),
        ({"input_extra": [{"text": ""}] * 257}, "input_extra"),
        ({"repeat_penalty": -1}, "repeat_penalty"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"grammar": "root ::= x"}, "grammar"),
    ],
)
async def test_what_cannot_be_is_named(
    http: httpx.AsyncClient, filling: FakeEngineClient, fields: dict[str, Any], param: str
) -> None:
    refused = await http.post(INFILL, json={**VIM, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert param in refused.text


async def test_nothing_around_the_cursor_is_refused(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    refused = await http.post(INFILL, json={"input_prefix": ""})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_prefix")


async def test_content_is_tokenized_as_llama_cpp_does(http: httpx.AsyncClient) -> None:
    sent = {"content": "a<|end|>", "add_special": False, "parse_special": True}
    assert (await http.post("/tokenize", json=sent)).json()["tokens"] == [97, END]
    sent["parse_special"] = False
    assert (await http.post("/tokenize", json=sent)).json()["tokens"] == [*b"a<|end|>"]
    messages = [{"role": "user", "content": "hi"}]
    for wrong, param in (
        ({"content": "a", "prompt": "a"}, "content"),
        ({"prompt": "a", "add_special": True, "add_special_tokens": True}, "add_special"),
        ({"messages": messages, "parse_special": True}, "parse_special"),
    ):
        refused = await http.post("/tokenize", json=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_filled_template_is_shown(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    sent = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool], "tool_choice": "auto"}
    reply = await http.post("/apply-template", json=sent)
    assert reply.status_code == 200, reply.text
    text = reply.json()["prompt"]
    counted = await http.post("/tokenize", json={"content": text})
    again = await http.post("/tokenize", json={"messages": sent["messages"], "tools": [tool]})
    assert counted.json()["tokens"] == again.json()["tokens"]
    assert engine.template.calls[0][1]["tools"]
    await http.post("/apply-template", json={**sent, "tool_choice": "none"})
    assert not engine.template.calls[-1][1].get("tools")
