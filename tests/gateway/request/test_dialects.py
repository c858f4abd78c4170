"""Errors of each API name its own fields, by its table: nothing is replaced in what clients say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from penstock.errors import Field, InvalidRequest
from penstock_gateway.anthropic.request import ANTHROPIC, MessagesRequest
from penstock_gateway.chat.endpoint import ChatRequest
from penstock_gateway.completions.endpoint import CompletionRequest
from penstock_gateway.llamacpp.completion import LlamaCompletionRequest
from penstock_gateway.llamacpp.request import LLAMA
from penstock_gateway.ollama.request import (
    CHAT_NAMES,
    GENERATE_NAMES,
    OllamaChatRequest,
    OllamaGenerateRequest,
)
from penstock_gateway.request.dialect import Dialect, NamedField
from penstock_gateway.responses.chat_translation import RESPONSES
from penstock_gateway.responses.request import ResponsesRequest
from penstock_gateway.tgi.request import TGI, GenerateRequest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[3]
USER = [{"role": "user", "content": "hello"}]


class Spoken(NamedTuple):
    """An API with a body of its own that nothing is wrong with. ours: what bodies are translated
    to."""

    path: str
    body: dict[str, Any]
    dialect: Dialect
    request: type[msgspec.Struct]
    ours: type[msgspec.Struct] = ChatRequest


SPOKEN = (
    Spoken("/v1/messages", {"messages": USER, "max_tokens": 4}, ANTHROPIC, MessagesRequest),
    Spoken("/api/chat", {"messages": USER, "stream": False}, CHAT_NAMES, OllamaChatRequest),
    Spoken(
        "/api/generate", {"prompt": "a", "stream": False}, GENERATE_NAMES, OllamaGenerateRequest
    ),
    Spoken("/v1/responses", {"input": "hello"}, RESPONSES, ResponsesRequest),
    Spoken("/completion", {"prompt": "a", "n_predict": 4}, LLAMA, LlamaCompletionRequest),
    Spoken("/generate", {"inputs": "a"}, TGI, GenerateRequest, CompletionRequest),
)
FAULTS: dict[str, Any] = {
    "temperature": 1000.0,
    "top_p": 7,
    "top_k": 2**40,
    "min_p": 7,
    "seed": 2**65,
    "stop": [""],
    "presence_penalty": 9,
    "frequency_penalty": 9,
    "repetition_penalty": 1000,
    "repetition_detection": {"max_pattern_size": 0, "min_count": 2},
    "n": 1000,
    "best_of": 1000,
    "ignore_eos": [],
    "logit_bias": {"x": 1},
    "stop_token_ids": [-1],
    "skip_special_tokens": [],
    "include_stop_str_in_output": [],
    "structured_outputs": 5,
    "mm_processor_kwargs": 5,
    "top_logprobs": 99,
    "chat_template_kwargs": {"messages": 1},
    "parallel_tool_calls": [],
    "max_tokens": -5,
    "max_completion_tokens": -5,
    "truncate_prompt_tokens": -5,
}
"""A wrong value of each of our fields that a table has."""
WHOLE = {"prompt", "messages"}
"""Names of ours that are also words of the sentences."""

CASES = [(api, field) for api in SPOKEN for field in api.dialect.fields]


def _id(value: object) -> str:
    return value.path if isinstance(value, Spoken) else getattr(value, "ours", "")


def _with(body: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    name, _, inner = path.partition(".")
    return {**body, name: _with(body.get(name, {}), inner, value) if inner else value}


def _foreign(api: Spoken) -> set[str]:
    """Names of ours that this API hasn't."""
    theirs = {each.theirs for each in api.dialect.fields} | {*api.request.__struct_fields__}
    ours = {each.ours for each in api.dialect.fields} | {
        name for name in api.ours.__struct_fields__ if "_" in name
    }
    return ours - theirs - WHOLE


def _check(api: Spoken, message: str, theirs: str) -> None:
    said = re.sub(r'"[^"]*"', "", message)
    names = set(re.findall(r"\w[\w.]*\w|\w", said))
    assert re.search(rf"(?<![\w.]){re.escape(theirs)}(?!\w)", said), message
    assert not names & _foreign(api), message


async def _refusal(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error if isinstance(error, dict) else {"message": error}


@pytest.mark.parametrize(
    ("api", "field"), [each for each in CASES if not each[1].only_named], ids=_id
)
async def test_a_wrong_value_is_told_by_the_name_that_the_body_has(
    http: httpx.AsyncClient, api: Spoken, field: NamedField
) -> None:
    error = await _refusal(http, api.path, _with(api.body, field.theirs, FAULTS[field.ours]))
    _check(api, error["message"], field.theirs)
    if error.get("param") is not None:
        assert error["param"].startswith(field.theirs)


@pytest.mark.parametrize(("api", "field"), CASES, ids=_id)
def test_each_name_of_the_table_is_said_and_values_stay(api: Spoken, field: NamedField) -> None:
    ours, theirs, value = field.ours, field.theirs, f'"{field.ours} and {field.ours}.x"'
    first = InvalidRequest(f"{ours} must be 1, not {value}", param=ours)
    later = InvalidRequest(f"{value}: each ", Field(ours), " is too long", param=ours)
    inner = InvalidRequest(f"{ours}[3].x is wrong", param=f"{ours}[3].x")
    for error, message, param in (
        (first, f"{theirs} must be 1, not {value}", theirs),
        (later, f"{value}: each {theirs} is too long", theirs),
        (inner, f"{theirs}[3].x is wrong", f"{theirs}[3].x"),
    ):
        told = api.dialect.own_words(error)
        assert (told.message, told.param) == (message, param)


SAYING = (
    *(
        f"services/penstock_gateway/{name}"
        for name in ("chat", "request", "generate", "completions")
    ),
    *(f"shared/penstock/{name}" for name in ("request", "client", "text", "media")),
)
"""Packages whose errors APIs tell in their own names."""


def test_sentences_have_no_bare_name_that_an_api_renames() -> None:
    """A sentence begins with its field, and has others as Field: only so they are renamed."""
    renamed = {
        field.ours
        for api in SPOKEN
        for field in api.dialect.fields
        if field.ours != field.theirs and re.search(r"[_.]", field.ours)
    }
    calls = 0
    for path in (path for name in SAYING for path in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "InvalidRequest"):
                continue
            calls += 1
            literal = " ".join(_literals(node))
            names = set(re.findall(r"[\w.]*\w", re.sub(r"^[\w.]+", "", literal)))
            assert not names & renamed, f"{path}:{node.lineno}: {literal}"
    assert calls > 100


def _literals(call: ast.Call) -> Iterator[str]:
    """What an error's call says itself; the name that the message begins with comes first."""
    for piece in call.args:
        for part in piece.values if isinstance(piece, ast.JoinedStr) else [piece]:
            if isinstance(part, ast.Constant):
                yield str(part.value)
            elif not isinstance(piece, ast.Call):
                yield "{}"


@pytest.mark.parametrize("api", SPOKEN, ids=_id)
def test_tables_name_fields_that_there_are(api: Spoken) -> None:
    known = {*api.ours.__struct_fields__, "min_indentation"}
    for field in api.dialect.fields:
        assert field.ours.partition(".")[0] in known, field
        inside = api.request
        name = field.theirs.partition(".")[0]
        assert name in inside.__struct_fields__, field
    copied = [each.ours for each in api.dialect.fields if not each.only_named]
    assert len(copied) == len({*copied})


@pytest.mark.parametrize("api", SPOKEN, ids=_id)
async def test_what_is_not_supported_is_refused_by_its_name(
    http: httpx.AsyncClient, api: Spoken
) -> None:
    for field, values in api.dialect.unsupported:
        wrong = [1] if any(isinstance(each, list) for each in values) else 3
        wrong = True if False in values and type(values[0]) is bool else wrong
        wrong = "x" if "" in values else wrong
        error = await _refusal(http, api.path, _with(api.body, field, wrong))
        assert error["message"].startswith(f"{field} is ")
        assert "allowed: " in error["message"]
        for value in (*values, None):
            answer = await http.post(api.path, json=_with(api.body, field, value))
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            "/v1/messages",
            {"messages": USER, "max_tokens": 4, "stop_sequences": [""]},
            "each stop_sequences string must have 1 to 1024 characters",
        ),
        (
            "/api/chat",
            {"messages": USER, "options": {"stop": [""]}},
            "each options.stop string must have 1 to 1024 characters",
        ),
        (
            "/v1/messages",
            {"messages": USER, "max_tokens": 4, "output_config": {"effort": "reasoning_effort"}},
            'output_config.effort is "reasoning_effort"; allowed: ',
        ),
        ("/api/chat", {"messages": USER, "think": "think"}, 'think is "think"; allowed: '),
        (
            "/v1/responses",
            {"input": "a", "reasoning": {"effort": "reasoning_effort, max_tokens"}},
            'reasoning.effort is "reasoning_effort, max_tokens"; allowed: ',
        ),
        (
            "/api/generate",
            {"prompt": "a", "images": ["", "%"]},
            "images[0]",
        ),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "messages[0].content", "images": ["%"]}]},
            "messages[0].images[0]",
        ),
        (
            "/generate",
            {"inputs": "a", "parameters": {"best_of": 200}},
            "parameters.best_of ",
        ),
    ],
)  # fmt: skip
async def test_sentences(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], said: str
) -> None:
    error = await _refusal(http, path, body)
    assert error["message"].startswith(said), error["message"]
