"""Arrays without equal items, followed while they are written: jsonschema judges."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer

from penstock.protocol.common import Grammar
from penstock_grammars.compiler import Compiler
from penstock_grammars.number_digits import DifferentItems
from penstock_grammars.unique_arrays import UniqueArrays
from penstock_worker.grammar.errors import GrammarError, TokenRefused
from tests.grammars.byte_matcher import Served, source

pytestmark = pytest.mark.timeout(300)
VOCABULARY, EOS = 49152, 2
ITEMS: dict[str, dict[str, Any]] = {
    "texts": {"items": {"type": "string"}},
    "short texts": {"items": {"type": "string", "maxLength": 2}, "minItems": 3},
    "numbers": {"items": {"type": "number"}},
    "few integers": {"items": {"type": "integer", "minimum": 9, "maximum": 15}, "minItems": 6},
    "values": {"items": {"enum": ["a", "ab", "abc", 'a"', 1, 10, 101, None, True]}, "minItems": 9},
    "scalars": {"items": {"type": ["string", "integer", "boolean", "null"]}, "minItems": 4},
    "anything": {},
    "the first is another": {
        "prefixItems": [{"enum": ["a", 1]}],
        "items": {"type": ["string", "integer"]},
    },
    "a text or one of some": {"items": {"anyOf": [{"enum": ["a", "b"]}, {"type": "string"}]}},
}


def unique(name: str) -> dict[str, Any]:
    return {"type": "array", "uniqueItems": True, "maxItems": 12} | ITEMS[name]


WITHIN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "all": {"type": "array", "items": {"$ref": "#/$defs/set"}},
        "either": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/set"}]},
    },
    "patternProperties": {"^x": {"$ref": "#/$defs/set"}},
    "additionalProperties": {"type": "array", "items": {"type": "string"}},
    "$defs": {"set": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
}


@pytest.fixture(scope="module")
def compiler(default_folder: Path) -> Iterator[Compiler]:
    made = Compiler(default_folder / "tokenizer.json", VOCABULARY, (EOS,), number_digits=16)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pieces(default_folder: Path) -> list[str]:
    tokenizer = Tokenizer.from_file(str(default_folder / "tokenizer.json"))
    return [tokenizer.decode([token]) for token in range(VOCABULARY)]


LIKED = ['"', ",", "]", '",', '","', '", "', '"]', "a", "b", "ab", "1", "0", "10", ",1", "1,", "t"]


def written(compiler: Compiler, pieces: list[str], schema: Any, dice: random.Random) -> str | None:
    """What a model writes that likes the same few pieces; None where it isn't at an end."""
    matcher = compiler(Grammar("json_schema", json.dumps(schema))).matcher()
    tokens: list[int] = []
    for _ in range(80):
        try:
            allowed = matcher.allowed()
        except GrammarError:  # There is no other item.
            return None
        if allowed[EOS]:
            return "".join(pieces[token] for token in tokens)
        possible = [int(token) for token in np.flatnonzero(allowed)]
        liked = [token for token in possible if pieces[token].strip() in LIKED]
        tokens.append(dice.choice(liked if liked and dice.random() < 0.95 else possible))
        matcher.advance(tokens[-1:])
    return None


@pytest.mark.parametrize("name", ITEMS)
def test_what_is_written_has_no_equal_items(
    compiler: Compiler, pieces: list[str], name: str
) -> None:
    judge, dice = jsonschema.Draft202012Validator(unique(name)), random.Random(name)
    whole = [written(compiler, pieces, unique(name), dice) for _ in range(16)]
    for text in filter(None, whole):
        judge.validate(json.loads(text))
    assert sum(text is not None for text in whole) > 3
    assert any(text is not None and "," in text for text in whole)


@pytest.mark.parametrize("name", ["values", "few integers"])
def test_items_that_can_be_listed_come_to_an_end(
    compiler: Compiler, pieces: list[str], name: str
) -> None:
    """All of them are there, in some order: the last is the one that was left."""
    for seed in range(4):
        text = written(compiler, pieces, unique(name) | {"maxItems": 9}, random.Random(seed))
        assert text is not None
        jsonschema.validate(json.loads(text), unique(name))


def test_a_follower_finds_what_the_judge_finds() -> None:
    dice = random.Random(5)
    judge = jsonschema.Draft202012Validator(WITHIN)
    arrays = UniqueArrays.of_source(source(WITHIN))
    assert arrays is not None
    verdicts = set()
    for _ in range(2000):
        texts = ["", "a", 'a"', "a,", "\\", "[", "é", "a b"]
        sets = [dice.choices(texts, k=dice.randrange(4)) for _ in range(6)]
        document = {"name": dice.choice(texts), "all": sets[:3], "either": sets[3], "y": sets[5]}
        if dice.random() < 0.5:
            document["x1"] = sets[4]
        valid = judge.is_valid(document)
        verdicts.add(valid)
        text = json.dumps(document, ensure_ascii=False, indent=dice.choice([None, 2])).encode()
        cut = dice.randrange(len(text))
        follower = arrays.begin()
        assert (follower.push(text[:cut]) and follower.copy().push(text[cut:])) == valid, document
    assert verdicts == {True, False}


def test_only_the_tokens_that_would_repeat_an_item_are_left_out() -> None:
    """Against trying each token of a small vocabulary."""
    parts = ['"', ",", "a", "b", "[", "]", "1", " ", "t", "true", "\\"]
    pieces = [*parts, *(x + y + z for x in parts for y in ["", *parts] for z in parts), "]"]
    different = DifferentItems([piece.encode() for piece in pieces])
    arrays = UniqueArrays.of_source(source(unique("scalars")))
    assert arrays is not None
    served = Served(unique("scalars"))
    for text in [
        "",
        "[",
        '["a"',
        '["a",',
        '["a", "',
        '["ab","a',
        "[1,",
        "[1,2,1",
        "[true,",
        '["",',
    ]:
        follower = arrays.begin()
        assert follower.push(text.encode())
        allowed = np.array([served.begins(text + piece) for piece in pieces])
        got = different.narrowed(allowed, follower)
        for token in np.flatnonzero(allowed):
            piece = pieces[token].encode()
            assert got[token] == follower.copy().push(piece), (text, piece)


@pytest.mark.parametrize(
    ("words", "schema"),
    [
        ("items that are arrays or objects", {"items": {"type": "object"}}),
        ("items that are arrays or objects", {"prefixItems": [{"type": "array"}]}),
        ("no output can match", {"items": {"enum": [1, 2, 3, 4, 5]}, "minItems": 6}),
    ],
)
def test_unique_items_that_cant_be_told_apart_are_refused(
    words: str, schema: dict[str, Any]
) -> None:
    with pytest.raises(GrammarError, match=words):
        Served({"type": "array", "uniqueItems": True} | schema)


def test_in_a_tag_nobody_follows(compiler: Compiler) -> None:
    content = {"type": "json_schema", "json_schema": unique("texts")}
    tag = {"format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}}
    with pytest.raises(GrammarError, match="in a structural tag, uniqueItems needs"):
        compiler(Grammar("structural_tag", json.dumps(tag)))


def test_the_opposite_is_not_all_that_has_equal_items() -> None:
    """What is followed is no part of the grammar: its opposite can't be said."""
    some = {"$ref": "#/$defs/some"}
    schema = {"$defs": {"some": unique("texts")}, "type": "array", "not": {"allOf": [some, {}]}}
    served = Served(schema)
    assert served.admits(["a", *range(12)])
    assert not served.admits(["a"])


@pytest.mark.parametrize("more", [{}, {"maxItems": 3}, {"prefixItems": [{"const": 2.5}]}])
def test_arrays_that_are_not_said_to_have_equal_items_are_not_its_opposite(
    more: dict[str, Any],
) -> None:
    """Items that are arrays or objects aren't followed: they may be no one's equals."""
    with pytest.raises(GrammarError, match="can't be excluded"):
        Served({"type": "array", "not": {"uniqueItems": True}} | more)


@pytest.mark.parametrize("text", ['["a","a"]', '["a" x', "zz", '["a"] and more'])
def test_tokens_that_do_not_fit_are_told_from_limits(
    compiler: Compiler, default_folder: Path, text: str
) -> None:
    """The library's grammar tells them apart, and so does what is followed beside it."""
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
    tokenizer = Tokenizer.from_file(str(default_folder / "tokenizer.json"))
    matcher = compiler(Grammar("json_schema", json.dumps(schema))).matcher()
    with pytest.raises(TokenRefused):
        matcher.advance(tokenizer.encode(text, add_special_tokens=False).ids)
