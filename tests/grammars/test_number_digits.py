"""Numbers of a JSON schema's output end, whatever the model would rather write."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from penstock.protocol.common import Grammar
from penstock_grammars.compiler import Compiler
from penstock_grammars.number_digits import DigitRow, NumberDigits
from penstock_worker.grammar.errors import GrammarError

pytestmark = pytest.mark.timeout(300)

VOCABULARY, EOS = 49152, 2
Wish = Callable[[str], str]
"""What a model would write behind a text: the first of these characters that is allowed."""


@pytest.fixture(scope="module")
def tokenizer(default_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def compiler(default_folder: Path) -> Iterator[Compiler]:
    made = Compiler(default_folder / "tokenizer.json", VOCABULARY, (EOS,), number_digits=16)
    yield made
    made.close()


def written(
    compiler: Compiler, tokenizer: Tokenizer, schema: Any, wish: Wish, most: int = 200
) -> str:
    """What a model with such wishes writes, a character a token."""
    matcher = compiler(Grammar("json_schema", json.dumps(schema))).matcher()
    text = ""
    while len(text) < most:
        allowed = matcher.allowed()
        wanted = [*wish(text), *'0123456789{}[]",:-.e abcdfghijklmnopqrstuvwxyz']
        ids = [tokenizer.token_to_id({" ": "Ġ"}.get(each, each)) for each in wanted]
        token = next((token for token in ids if token is not None and allowed[token]), EOS)
        if token == EOS:
            assert allowed[EOS]
            return text
        matcher.advance([token])
        text += tokenizer.decode([token])
    raise AssertionError(f"no end: {text}")


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("3", "3" * 16),
        ("-3", "-" + "3" * 16),
        (".3", None),
        ("e3", None),
    ],
)
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_a_number_ends(
    compiler: Compiler, tokenizer: Tokenizer, kind: str, wish: str, expected: str | None
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]}

    def wishes(text: str) -> str:
        return wish if text.partition(":")[2].strip() or "-" in wish else "3"

    text = written(compiler, tokenizer, schema, wishes)
    value = json.loads(text)["n"]
    assert math.isfinite(value) or "e" in text
    rows = "".join(c if c.isdigit() else " " for c in text).split()
    assert max(map(len, rows)) == 16
    if expected is not None:
        assert expected in text


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 1234567890123456768},
        {"enum": [-876543210987654272]},
        {"type": "integer", "minimum": 10**17, "maximum": 10**18},
        {"type": "string", "pattern": "^[0-9]{40}$"},
        {"type": "string", "minLength": 40, "maxLength": 40},
    ],
)
def test_what_needs_more_digits_has_them(
    compiler: Compiler, tokenizer: Tokenizer, schema: dict[str, Any]
) -> None:
    import jsonschema

    text = written(compiler, tokenizer, schema, lambda text: "1" if text else '"1-')
    jsonschema.validate(json.loads(text), schema)
    assert len(text) > 17


def test_without_a_bound_it_has_none(default_folder: Path, tokenizer: Tokenizer) -> None:
    compiler = Compiler(default_folder / "tokenizer.json", VOCABULARY, (EOS,))
    with pytest.raises(AssertionError, match="no end"):
        written(compiler, tokenizer, {"type": "integer"}, lambda text: "3")
    compiler.close()


def test_a_row_is_of_digits_outside_of_strings() -> None:
    """Against the same by looking back from each place of random texts."""
    dice = random.Random(3)
    for _ in range(300):
        value = {"".join(dice.choices('12a"\\ é', k=6)): dice.choice([1, 12.25, [3, 45], "67"])}
        text = json.dumps(value, ensure_ascii=dice.random() < 0.5).encode()
        row, place = DigitRow(), 0
        while place < len(text):
            step = dice.randrange(1, 4)
            row.push(text[place : place + step])
            place = min(place + step, len(text))
            in_string = _in_string(text[:place])
            assert row.in_string == in_string
            if not in_string:
                before = text[:place]
                assert row.length == len(before) - len(before.rstrip(b"0123456789"))


def _in_string(text: bytes) -> bool:
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return bare.count(b'"') % 2 == 1


def test_a_token_of_several_digits_counts_as_such() -> None:
    digits, row = NumberDigits([b"1", b"12", b"123", b",", b"1,2", b""], most=4), DigitRow()
    everything = np.ones(6, bool)
    assert digits.narrowed(everything, row).tolist() == [True] * 6
    row.push(b"77")
    assert digits.narrowed(everything, row).tolist() == [True, True, False, True, True, True]
    row.push(b"77")
    assert digits.narrowed(everything, row).tolist() == [False, False, False, True, False, True]
    only = np.array([True, True, False, False, False, False])
    assert digits.narrowed(only, row).tolist() == only.tolist()


@pytest.mark.parametrize("inside", [False, True])
def test_a_text_that_compiles_and_cannot_be_written_is_refused(
    compiler: Compiler, inside: bool
) -> None:
    schema: dict[str, Any] = {
        "type": "string",
        "pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)",
        "maxLength": 5000,
    }
    if inside:
        schema = {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "a": {"type": "array", "items": schema}},
            "required": ["n"],
        }
    with pytest.raises(GrammarError, match="too many expressions"):
        compiler(Grammar("json_schema", json.dumps(schema)))
    short = json.loads(json.dumps(schema).replace("5000", "50"))
    compiler(Grammar("json_schema", json.dumps(short)))


@pytest.mark.parametrize("wish", ["3", "-3"])
def test_a_number_ends_after_thoughts_and_in_a_call(
    compiler: Compiler, tokenizer: Tokenizer, wish: str
) -> None:
    """Whatever quotes the thoughts hold; and digits of a text aren't a number's."""
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "x": {"type": "integer"}},
        "required": ["text", "x"],
    }
    thoughts = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "!"}
    answer = {"type": "json_schema", "json_schema": schema}
    space = {"type": "regex", "pattern": r"\s{0,8}"}
    tag = {"format": {"type": "sequence", "elements": [thoughts, space, answer]}}
    matcher = compiler(Grammar("structural_tag", json.dumps(tag))).matcher()
    said = 'Hm " ' + "7" * 30 + '!{"text": "' + "7" * 30 + '", "x": '
    for token in tokenizer.encode(said).ids:
        assert matcher.allowed()[token]
        matcher.advance([token])
    digits = 0
    sign, three = tokenizer.token_to_id("-"), tokenizer.token_to_id("3")
    if wish.startswith("-"):
        matcher.advance([sign])
    while matcher.allowed()[three]:
        matcher.advance([three])
        digits += 1
        assert digits <= 16
    assert digits == 16


@pytest.mark.parametrize(
    "content",
    [{"type": "regex", "pattern": "[0-9]+x"}, {"type": "grammar", "grammar": "start: /[0-9]+x/"}],
)
def test_a_clients_own_expression_is_left_alone(
    compiler: Compiler, tokenizer: Tokenizer, content: Any
) -> None:
    answer = {"type": "json_schema", "json_schema": {"type": "integer"}}
    tag = {"format": {"type": "sequence", "elements": [content, answer]}}
    matcher = compiler(Grammar("structural_tag", json.dumps(tag))).matcher()
    seven = tokenizer.token_to_id("7")
    for _ in range(40):
        assert matcher.allowed()[seven]
        matcher.advance([seven])
