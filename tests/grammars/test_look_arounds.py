"""Patterns that look ahead: the texts that are served are those that Python's expressions take."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from penstock_grammars.schemas.normal_form import without_look_arounds
from penstock_worker.grammar.errors import GrammarError
from tests.grammars.byte_matcher import Served

SIGNED = r"^(?!^[-+.]*$)[+-]?0*"


def digits_and_places(digits: int, places: int) -> str:
    """The pattern that Pydantic 2.12 writes for a Decimal."""
    whole = max(0, digits - places)
    ahead = rf"(?=[\d.]{{1,{digits + 1}}}0*$)"
    return rf"{SIGNED}(?:\d{{0,{whole}}}|{ahead}\d{{0,{whole}}}\.\d{{0,{places}}}0*$)"


def digits(most: int) -> str:
    ahead = rf"(?=[\d.]{{1,{most + 1}}}0*$)"
    return rf"{SIGNED}(?:\d{{0,{most}}}|{ahead}\d*\.\d*0*$)"


DECIMALS = [
    rf"{SIGNED}\d*\.?\d*$",
    *(rf"{SIGNED}\d*\.?\d{{0,{places}}}0*$" for places in (0, 1, 3)),
    *(digits(most) for most in (0, 1, 3)),
    *(digits_and_places(*each) for each in ((3, 1), (2, 2), (1, 2), (2, 0), (0, 0))),
]
TEXTS = ["".join(each) for size in range(7) for each in itertools.product("-.01+", repeat=size)]


def ended(pattern: str) -> re.Pattern[str]:
    """The pattern, with an end of the text in every branch, as is meant: Pydantic's first one lacks
    it, so that it would take anything."""
    return re.compile(pattern.replace("}|(?=", "}$|(?=", 1))


@pytest.mark.parametrize("pattern", DECIMALS)
def test_decimals(pattern: str) -> None:
    node = {"pattern": pattern}
    without_look_arounds(node)
    ours, theirs = re.compile(node["pattern"]), ended(pattern)
    assert "(?=" not in node["pattern"]
    taken = [text for text in TEXTS if ours.search(text)]
    assert taken == [text for text in TEXTS if theirs.search(text)]
    assert taken
    assert all(re.search(pattern, text) for text in taken)


@pytest.mark.parametrize("pattern", DECIMALS[::3])
def test_decimals_as_they_are_served(pattern: str) -> None:
    served = Served({"anyOf": [{"type": "number"}, {"type": "string", "pattern": pattern}]})
    assert served.admits(1.5)
    for text in ("", "1", "-0.1", ".", "+", "1.", "00.00", "x", "1e5"):
        assert served.admits(text) == bool(ended(pattern).search(text)), text


LEADING = {
    r"^(?=.*[A-Z])(?=.*\d).{4,6}$": (["Ab1c", "1bcA"], ["ab1c", "Abcd", "Ab1", "Ab1defg"]),
    r"^(?=a|b)\w+$": (["ab", "b"], ["c", ""]),
    r"^(?![\d_]*$)\w+$": (["a1", "1a"], ["11", "1_"]),
    r"^(?!^[^a]*$)[a-c)(|]+$": (["a", "b(a|"], ["b", "(|"]),
    r"^(?=(?:..)*$)[ab]+$": (["ab", "abba"], ["a", "aba"]),
}


@pytest.mark.parametrize("pattern", LEADING)
def test_what_looks_ahead_at_the_beginning(pattern: str) -> None:
    good, bad = LEADING[pattern]
    assert all(re.search(pattern, text) for text in good)
    assert not any(re.search(pattern, text) for text in bad)
    served = Served({"type": "string", "pattern": pattern})
    assert [text for text in good + bad if served.admits(text)] == good


@pytest.mark.parametrize(
    "pattern",
    [
        r"^a(?=b)b$",
        r"(?=a)b",
        r"^(?=a)b|c$",
        r"^(?!.*--)[a-z-]+$",
        r"^(?<=a)b",
        r"^(?=(?!a)b)b$",
        r"^(?=a",
        r"^((?=a)a|b)$",
    ],
)
def test_what_is_refused_names_the_place_and_says_how_to_go_on(pattern: str) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": pattern}},
    }
    with pytest.raises(GrammarError, match=r"/properties/code.*leave it out"):
        Served(schema)
