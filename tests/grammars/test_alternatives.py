"""Which of several tools' schemas is at fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.protocol.common import Grammar
from penstock_grammars import child
from penstock_grammars.child import located
from penstock_worker.grammar.errors import GrammarError

GOOD = {"properties": {"a": {"type": "integer"}}}


def calls(*schemas: Any) -> Grammar:
    """The grammar that a gateway writes for calls of which each is one of several tools'."""
    items = [{"properties": {"parameters": schema}} for schema in schemas]
    schema = {"type": "array", "minItems": 1, "items": {"anyOf": items}}
    return Grammar("json_schema", json.dumps(schema))


class Compiler:
    """Refuses a schema that holds `bad`, as a library does that names no place."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, grammar: Grammar) -> None:
        self.seen.append(json.loads(grammar.text))
        if '"bad"' in grammar.text:
            raise GrammarError("Unimplemented keys: bad")


def test_the_first_that_does_not_compile_alone_is_named() -> None:
    compiler = Compiler()
    definition = calls(GOOD, {"$ref": "#/items/anyOf/1"}, {"bad": 1}, {"bad": 2}, GOOD)
    found = located(definition, "Unimplemented keys: bad", compiler)
    assert found == "at /items/anyOf/2: Unimplemented keys: bad"
    whole = json.loads(definition.text)["items"]["anyOf"]
    for seen in compiler.seen:
        assert seen["minItems"] == 1
        for place, alternative in enumerate(seen["items"]["anyOf"]):
            assert alternative in (whole[place], {"type": "null"}), "each at its own place"


@pytest.mark.parametrize("count", [1, 2, 3, 7, 128])
def test_any_place_is_found_at_the_cost_of_about_one_compilation(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "PATIENCE", 60.0)  # A busy machine takes longer.
    for bad in range(count):
        compiler = Compiler()
        schemas = [{"bad": 1} if at == bad else GOOD for at in range(count)]
        assert located(calls(*schemas), "wrong", compiler).startswith(f"at /items/anyOf/{bad}: ")
        compiled = [s for seen in compiler.seen for s in seen["items"]["anyOf"] if len(s) == 1]
        kept = [s for s in compiled if "properties" in s]
        assert len(kept) <= 2 * count


@pytest.mark.parametrize(
    "definition",
    [
        Grammar("regex", "("),
        Grammar("json_schema", "false"),
        Grammar("json_schema", '{"type": "object", "properties": {"bad": {}}}'),
        Grammar("json_schema", '{"items": {"anyOf": 3}}'),
        Grammar("json_schema", '{"items": [{"anyOf": [1]}]}'),
        calls(GOOD, GOOD),
    ],
)
def test_other_complaints_stay_as_they_are(definition: Grammar) -> None:
    assert located(definition, "it is wrong", Compiler()) == "it is wrong"


def test_a_complaint_that_says_its_place_is_left_alone() -> None:
    compiler = Compiler()
    complaint = "at /items/anyOf/3/properties/parameters: no"
    assert located(calls(GOOD, {"bad": 1}), complaint, compiler) == complaint
    assert not compiler.seen


def test_it_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PATIENCE", -1.0)
    assert located(calls(GOOD, {"bad": 1}), "wrong", Compiler()) == "wrong"
