"""What must hold of each API that has a table of its fields, see `request.dialect`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from penstock.errors import Field, InvalidRequest
from penstock_gateway.chat.endpoint import ChatRequest
from penstock_gateway.request.dialect import Dialect, NamedField

ROOT = Path(__file__).parents[3]


class Spoken(NamedTuple):
    """An API with a body of its own that nothing is wrong with. ours: what bodies are translated
    to."""

    path: str
    body: dict[str, Any]
    dialect: Dialect
    request: type[msgspec.Struct]
    ours: type[msgspec.Struct] = ChatRequest


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


def cases(apis: Iterable[Spoken], *, copied: bool) -> list[tuple[Spoken, NamedField]]:
    """Each API with each field of its table. copied: those alone whose values the table copies."""
    return [
        (api, field)
        for api in apis
        for field in api.dialect.fields
        if not (copied and field.only_named)
    ]


def id_of(value: object) -> str:
    """Names a case."""
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


async def refusal(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The error of a body that is refused."""
    answer = await http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error if isinstance(error, dict) else {"message": error}


async def refuses_a_wrong_value(http: httpx.AsyncClient, api: Spoken, field: NamedField) -> None:
    """A wrong value is told by the name that the body has."""
    error = await refusal(http, api.path, _with(api.body, field.theirs, FAULTS[field.ours]))
    _check(api, error["message"], field.theirs)
    if error.get("param") is not None:
        assert error["param"].startswith(field.theirs)


def says_its_names(api: Spoken, field: NamedField) -> None:
    """The name is said in the place of ours, wherever it stands, and values stay."""
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


def names_fields_that_there_are(api: Spoken) -> None:
    """No name of the table is mistyped, and no field of ours is copied twice."""
    known = {*api.ours.__struct_fields__, "min_indentation"}
    for field in api.dialect.fields:
        assert field.ours.partition(".")[0] in known, field
        inside = api.request
        name = field.theirs.partition(".")[0]
        assert name in inside.__struct_fields__, field
    copied = [each.ours for each in api.dialect.fields if not each.only_named]
    assert len(copied) == len({*copied})


async def refuses_what_is_not_supported(http: httpx.AsyncClient, api: Spoken) -> None:
    """Neutral values are accepted, and others refused by the field's name."""
    for field, values in api.dialect.unsupported:
        wrong: Any = [1] if any(isinstance(each, list) for each in values) else 3
        wrong = True if False in values and type(values[0]) is bool else wrong
        wrong = "x" if "" in values else wrong
        error = await refusal(http, api.path, _with(api.body, field, wrong))
        assert error["message"].startswith(f"{field} is ")
        assert "allowed: " in error["message"]
        for value in (*values, None):
            answer = await http.post(api.path, json=_with(api.body, field, value))
            assert answer.status_code == 200, answer.text


SAYING = (
    *(
        f"services/penstock_gateway/{name}"
        for name in ("chat", "request", "generate", "completions")
    ),
    *(f"shared/penstock/{name}" for name in ("request", "client", "text", "media")),
)
"""Packages whose errors APIs tell in their own names."""


def check_sentences(apis: Iterable[Spoken]) -> None:
    """A sentence begins with its field, and has others as Field: only so they are renamed."""
    renamed = {
        field.ours
        for api in apis
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
