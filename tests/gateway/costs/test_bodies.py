"""Recipes become the bodies that they say, and every pair of places has its turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testing.costs.fillers import ESCAPED, KINDS, length_of, of_lines, written
from tests.gateway.costs.operations import by_path, example
from tests.gateway.costs.products import (
    RARELY,
    all_pairs,
    drawn,
    pairs_of_turn,
    places_of,
    products_of_turn,
)
from tests.gateway.costs.sites import Leaf, Many, body_with


def made(value: Any) -> Any:
    return json.loads(written(value))


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_the_size_that_it_should_have(kind: str) -> None:
    wide = 2 if kind == "wide_escapes" else 1  # Its escape is a pair of halves.
    for size in (0, 1, 20, 1000):
        texts = made({"$many": [2, {"$text": [kind, size]}]})
        units = [len(text.encode("utf-16-le")) // 2 for text in texts]
        expected = [size * wide] * 2
        assert units == expected or [len(text) for text in texts] == expected


def test_elements_differ_by_their_numbers() -> None:
    body = made({"$many": [2, {"a": {"$id": "c"}, "b": {"$many": [2, {"$id": "d"}]}}]})
    assert body == [
        {"a": "c000001", "b": ["d000001000001", "d000001000002"]},
        {"a": "c000002", "b": ["d000002000001", "d000002000002"]},
    ]
    assert len(set(made({"$many": [9, {"$text": ["words", 40]}]}))) == 9


def test_values_come_in_turn_and_lists_in_a_row() -> None:
    assert made({"$many": [5, "a", "b"]}) == ["a", "b", "a", "b", "a"]
    assert made({"$chain": [[1], {"$many": [2, "a"]}, []]}) == [1, "a", "a"]
    assert made({"$table": [2, 0]}) == {"1": 0, "2": 0}
    assert made({"$json": {"a": {"$ids": 2}}}) == '{"a":[1,2]}'
    assert made({"$nested": [3, "object"]}) == {"a": {"a": {"a": 1}}}
    assert len(made({"$schema": [3, 30]})["properties"]) == 3
    assert [json.loads(line) for line in of_lines(2, {"$id": "l"}).splitlines()] == [
        "l000001",
        "l000002",
    ]


@pytest.mark.parametrize("kind", sorted({*KINDS} - {*ESCAPED}))
def test_a_bodys_length_is_known_before_it_is_made(kind: str) -> None:
    body = {"a": {"$many": [50, {"b": {"$text": [kind, 500]}, "c": {"$table": [9, 1]}}]}}
    assert 0.5 < length_of(body) / len(written(body)) < 2.0


def test_what_is_grown_stands_where_it_should() -> None:
    operation = by_path()["/v1/messages"]
    calls = ("messages", "[]", "content")
    body = body_with(
        operation.body,
        example(operation),
        {("messages",): Many(2), calls: Many(3), (*calls, "[]", "thinking"): Leaf("b")},
    )
    message = made(body)["messages"][1]
    assert message["role"] == "assistant"
    assert [block["thinking"] for block in message["content"]] == ["b"] * 3
    assert {block["type"] for block in message["content"]} == {"thinking"}


def test_every_operation_has_places_that_grow() -> None:
    without = {path for path, operation in by_path().items() if not places_of(operation)[0]}
    assert without <= {"/invocations"}


def test_every_pair_has_its_turn() -> None:
    """Once in so many, in a body that can be made."""
    turns = 3
    missing = {*all_pairs()}
    assert len(missing) > 1000
    for turn in range(turns * RARELY):
        for pair, draw in pairs_of_turn(turn, turns):
            if pair in missing and (recipe := drawn(pair, draw)) is not None:
                assert recipe.name.startswith(f"{pair.name}, ")
                missing.remove(pair)
    assert not missing


def test_a_turn_has_the_bodies_of_its_pairs() -> None:
    pairs = [pair for pair, _ in pairs_of_turn(5, 36)]
    names = [
        recipe.name.rpartition(", ")[0].rpartition(", ")[0] for recipe in products_of_turn(5, 36)
    ]
    assert 0 < len(names) <= len(pairs)
    assert names == [pair.name for pair in pairs if pair.name in names]
