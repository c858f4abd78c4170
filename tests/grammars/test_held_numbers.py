"""A schema's numbers are held exactly, or refused."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import pytest

from penstock_worker.grammar.errors import GrammarError
from tests.grammars.byte_matcher import Served, source


@pytest.mark.parametrize(
    "text",
    [
        '{"const": 9007199254740993}',
        '{"enum": ["a", 1234567890123456789]}',
        '{"const": {"id": [1, -9007199254740993]}}',
        '{"properties": {"id": {"enum": [9007199254740993]}}}',
        '{"const": -9223372036854775808}',
        '{"const": 18446744073709551616}',
        '{"const": 0.12345678901234567890123}',
        '{"const": 7.524058591376122e-25}',
        '{"minimum": 18446744073709551617, "maximum": 18446744073709551617}',
        '{"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740993}',
        '{"type": "integer", "exclusiveMinimum": 9007199254740992, "maximum": 9007199254740993}',
        '{"type": "integer", "minimum": 1234567890123456789, "maximum": 1234567890123456799}',
        '{"multipleOf": 4294967295}',
        '{"type": "array", "items": {"anyOf": [{"const": 1}, {"const": 9007199254740993}]}}',
    ],
)
def test_what_can_not_be_held_is_refused(text: str) -> None:
    with pytest.raises(GrammarError, match=r"exactly|no output|Unsatisfiable|range") as raised:
        Served(json.loads(text))
    assert str(raised.value)


@pytest.mark.parametrize("written", ["0.12345678901234567890123", "1.00000000000000000001"])
def test_digits_of_a_schema_that_comes_as_text_are_not_lost(written: str) -> None:
    import llguidance

    from penstock.protocol.common import Grammar
    from penstock_grammars.library import source_of

    with pytest.raises(GrammarError, match=written):
        source_of(llguidance, Grammar("json_schema", f'{{"const": {written}}}'), {})


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (9007199254740992, 9007199254740993),
        (-9007199254740991, -9007199254740990),
        (1234567890123456768, 1234567890123456789),
        (1e22, 10**22 + 1),
        (0.1, 0.11),
        (123456789.012345, 123456789.012346),
    ],
)
def test_what_can_be_held_is(value: Any, other: Any) -> None:
    for schema in ({"const": value}, {"enum": ["a", value]}):
        served = Served(schema)
        assert served.accepts(str(int(value)) if value == int(value) else str(value))
        assert not served.accepts(str(other))


def test_bounds_admit_no_integer_beyond_them() -> None:
    """Of bounds of all sizes, against Python's integers."""
    dice = random.Random(5)
    served = 0
    for _ in range(150):
        size = 2 ** dice.randrange(50, 66)
        low = dice.choice((-1, 1)) * dice.randrange(size)
        high = low + dice.randrange(0, 5000)
        names = (
            dice.choice(("minimum", "exclusiveMinimum")),
            dice.choice(("maximum", "exclusiveMaximum")),
        )
        schema = {"type": "integer", names[0]: low, names[1]: high}
        first = low + (names[0] == "exclusiveMinimum")
        last = high - (names[1] == "exclusiveMaximum")
        try:
            grammar = Served(schema)
        except GrammarError:
            continue
        served += 1
        for near in (low, high):
            for step in range(-3, 4):
                if grammar.accepts(str(near + step)):
                    assert first <= near + step <= last, (schema, near + step)
    assert served > 50


@pytest.mark.parametrize("most", [2**63 - 1, 2**64 - 1, 1e300])
def test_the_largest_integer_of_a_language_is_a_bound(most: float) -> None:
    served = Served({"type": "integer", "minimum": 0, "maximum": most})
    assert served.accepts("0")
    assert served.accepts(str(2**63 - 1024))
    assert not served.accepts("-1")


def test_bounds_of_fractions_are_inside_of_what_was_written() -> None:
    dice = random.Random(7)
    for _ in range(60):
        low = dice.uniform(-2, 2)
        high = low + dice.uniform(0.01, 1)
        grammar = Served({"type": "number", "minimum": low, "maximum": high})
        document = grammar.walk(random.Random(3))
        if document is not None:
            assert Fraction(low) - Fraction(1, 10**15) <= Fraction(document)
            assert Fraction(document) <= Fraction(high) + Fraction(1, 10**15)


def test_the_source_has_no_number_that_would_be_changed() -> None:
    text = source({"type": "integer", "minimum": 5, "maximum": 2**64})
    (grammar,) = json.loads(text)["grammars"]
    assert grammar["json_schema"]["maximum"] == 2**63 - 1024
