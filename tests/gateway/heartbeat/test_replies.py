"""However much a reply shows of its tokens, whole or streamed, the event loop stands still for no
more than 50 ms while it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from penstock.client import SequenceDelta
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.generate.logprobs import (
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from penstock_gateway.responses.request import LOGPROBS
from tests.gateway.fake_engine import MODEL, Step
from tests.gateway.heartbeat.beaten import BeatenGateway, beaten
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.engines import GeneratingEngine, TellingEngine
from tests.gateway.heartbeat.test_bodies import OPERATIONS

pytestmark = pytest.mark.timeout(300)

SHOWN = {"prompt_logprobs", "logprobs", "top_logprobs"}
REFUSE = ("/api/chat", "/api/generate")
"""They know the fields, and refuse them."""
SMALLER = ("/v1/fim/completions",)
"""Its answers have no log-probabilities."""
PATHS = [
    path
    for path, operation in OPERATIONS.items()
    if SHOWN.intersection(operation.body.__struct_fields__)
    and operation.streams  # What only counts an input shows nothing of it.
    and path not in (*REFUSE, *SMALLER)
]
MANY, SOME = 8192, 700
"""Tokens of a prompt and of an answer: what took half a second at once; and more than are written
at once or make a piece."""
GIVEN: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/completions": lambda text: {"prompt": text, "logprobs": 20},
    "/v1/chat/completions": lambda text: {
        "messages": [{"role": "user", "content": text}],
        "logprobs": True,
    },
    "/v1/responses": lambda text: {"input": text, "include": [LOGPROBS]},
}
GIVEN["/chat/completions"] = GIVEN["/v1/chat/completions"]
"""What a request gives besides its text, by path; a new path needs its entry."""


def asked(path: str, tokens: int, n: int, *, stream: bool) -> dict[str, Any]:
    """All that can be shown: of many answers, or of few and the prompt."""
    fields: dict[str, Any] = {"top_logprobs": 20, "stream": stream, "n": n}
    fields |= {"return_token_ids": True, "max_tokens": tokens // n}
    if n <= 2:
        fields |= {"echo": True, "prompt_logprobs": None if stream else 20}
    known = OPERATIONS[path].body.__struct_fields__
    return {name: each for name, each in fields.items() if name in known} | GIVEN[path](
        "b" * tokens
    )


@pytest.fixture(scope="module")
def gateway() -> Iterator[BeatenGateway]:
    with collecting_as_a_gateway(), beaten(TellingEngine(MANY)) as found:
        yield found


@pytest.fixture(scope="module")
def small() -> Iterator[BeatenGateway]:
    with beaten(TellingEngine(SOME)) as found:
        yield found


def answer(gateway: BeatenGateway, path: str, body: dict[str, Any]) -> bytes:
    status, found = gateway.answer(path, json.dumps(body).encode())
    assert status == 200, found[:1000]
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [2, 64])
@pytest.mark.parametrize("path", PATHS)
def test_a_reply_that_shows_all_holds_nothing_up(
    gateway: BeatenGateway, path: str, n: int, stream: bool
) -> None:
    body = asked(path, MANY, n, stream=stream)
    found, late = gateway.watched(lambda: answer(gateway, path, body))
    assert len(found) > 3_000_000
    assert late <= latest()


MARKS = "\n{" * 40_000
"""What might begin calls in Hermes' form, and never does."""
TOOL = {"name": "f", "parameters": {"type": "object"}}
FUNCTION = {"type": "function", "function": TOOL}
USER = {"role": "user", "content": "a"}
CALLING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "tools": [FUNCTION]},
    "/v1/responses": {"input": "a", "tools": [{"type": "function", **TOOL}]},
    "/v1/messages": {
        "model": MODEL,
        "messages": [USER],
        "max_tokens": 100_000,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
    "/api/chat": {"model": MODEL, "messages": [USER], "tools": [FUNCTION]},
}
"""A request with a tool, by path."""


class MarkingEngine(GeneratingEngine):
    """Says MARKS at once."""

    def __init__(self) -> None:
        super().__init__()
        self.script = self.mark

    def mark(self, prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        ids = list(MARKS.encode())
        yield [SequenceDelta(index=0, text=MARKS, token_ids=ids, finish_reason="length")]


@pytest.fixture(scope="module")
def marking() -> Iterator[BeatenGateway]:
    with collecting_as_a_gateway(), beaten(MarkingEngine(), tool_call_parser="hermes") as found:
        yield found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLING)
def test_an_answer_full_of_marks_holds_nothing_up(
    marking: BeatenGateway, path: str, stream: bool
) -> None:
    body = {**CALLING[path], "stream": stream}
    found, late = marking.watched(lambda: answer(marking, path, body))
    assert found.count(b"\\n") >= MARKS.count("\n")
    assert late <= latest()


def reply_of(gateway: BeatenGateway, path: str) -> Any:
    """The reply, which is written as an encoder writes all of it at once."""
    written = answer(gateway, path, asked(path, SOME, 2, stream=False))
    found = msgspec.json.decode(written)
    assert msgspec.json.encode(found) == written
    return found


class Expected:
    """What a reply says, made at once of all tokens."""

    def __init__(self, prompt: list[int]) -> None:
        self._engine = TellingEngine(SOME)
        self._tokens = self._engine.text.tokenizer
        self.prompt = prompt
        entries = self._engine.entries
        self._of_prompt = [None, *(entries[id] for id in prompt[1:])]
        self.ids = [ord("a") + place % 26 for place in range(SOME // 2)]
        self._of_answer = [entries[id] for id in self.ids]

    def shown_prompt(self) -> Any:
        told = prompt_logprobs(self._tokens, self.prompt, self._of_prompt, 20)
        return msgspec.json.decode(msgspec.json.encode(told))

    def chat(self) -> Any:
        return msgspec.to_builtins(chat_logprobs(self._tokens, self.ids, self._of_answer))

    def completion(self) -> Any:
        ids = [*self.prompt, *self.ids]
        told, _ = completion_logprobs(self._tokens, ids, [*self._of_prompt, *self._of_answer], 0)
        return msgspec.to_builtins(told)


def test_a_completion_in_pieces_says_what_it_says_at_once(small: BeatenGateway) -> None:
    found = reply_of(small, "/v1/completions")
    expected = Expected([ord("b")] * SOME)
    for choice in found["choices"]:
        assert choice["text"] == "b" * SOME + bytes(expected.ids).decode()
        assert choice["logprobs"] == expected.completion()
        assert choice["prompt_logprobs"] == expected.shown_prompt()
        assert (choice["prompt_token_ids"], choice["token_ids"]) == (expected.prompt, expected.ids)


def test_a_chat_in_pieces_says_what_it_says_at_once(small: BeatenGateway) -> None:
    found = reply_of(small, "/v1/chat/completions")
    expected = Expected(found["prompt_token_ids"])
    assert found["prompt_logprobs"] == expected.shown_prompt()
    for choice in found["choices"]:
        assert choice["logprobs"] == expected.chat()
        assert choice["message"]["content"] == bytes(expected.ids).decode()


def test_a_streamed_echo_in_pieces_says_what_it_says_whole(small: BeatenGateway) -> None:
    whole = reply_of(small, "/v1/completions")
    streamed = answer(small, "/v1/completions", asked("/v1/completions", SOME, 2, stream=True))
    chunks = [
        msgspec.json.decode(event.removeprefix(b"data: "))
        for event in streamed.split(b"\n\n")
        if event.startswith(b"data: {")
    ]
    for choice in whole["choices"]:
        mine = [
            each
            for chunk in chunks
            for each in chunk["choices"]
            if each["index"] == choice["index"]
        ]
        assert "".join(each["text"] for each in mine) == choice["text"]
        for name, values in choice["logprobs"].items():
            told = [one for each in mine for one in (each["logprobs"] or {name: []})[name]]
            assert told == values
        assert [one for each in mine for one in each["token_ids"]] == choice["token_ids"]
