"""Texts that a pattern doesn't match, against Python's own regular expressions."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from penstock_grammars.schemas.complement import complement
from penstock_grammars.schemas.keywords import Unservable

CHARACTERS = 'ab1_ -.\n"\\é'
TEXTS = ["".join(text) for n in range(4) for text in itertools.product(CHARACTERS, repeat=n)]
DISPUTED = re.compile(r"[^\x00-\x7f]|\n")
"""What dialects don't agree about."""


def matcher(pattern: str) -> re.Pattern[str]:
    """What the worker's dialect writes as \\x{…} is \\U00… in Python's."""
    return re.compile(re.sub(r"\\x\{([0-9a-f]+)\}", lambda m: rf"\U{int(m[1], 16):08x}", pattern))


def check(pattern: str) -> None:
    own, other = re.compile(pattern), matcher(complement(pattern))
    for text in TEXTS:
        matches, excluded = bool(own.search(text)), bool(other.fullmatch(text))
        assert not (matches and excluded), (pattern, text)
        if not DISPUTED.search(text):
            assert matches != excluded, (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "^a",
        "a$",
        "^a$",
        "",
        "^$",
        "^....$",
        "ab1",
        "^[ab]+$",
        "^[^ab]*$",
        r"^[\.\,\*\\\-\s\{\}\(\)]+$",
        r"[a|b]",
        r"\d\d",
        r"^[\w]*$",
        r"^[^\w]*$",
        r"^\S+\s\S+$",
        "1.*b",
        "^(a|b1)?[a-b]{2,3}$",
        "^(?:ab)*$",
        "^(a|b)",
        r"^[\s\S]*$",
        r"^\D+$",
    ],
)
def test_a_text_is_matched_by_one_of_both(pattern: str) -> None:
    check(pattern)


@pytest.mark.parametrize("seed", range(40))
def test_random_patterns(seed: int) -> None:
    dice = random.Random(seed)

    def part(depth: int) -> str:
        match dice.randrange(6 if depth else 3):
            case 0:
                return dice.choice("ab1_")
            case 1:
                return dice.choice(["[ab]", "[^a]", r"\w", r"\d", ".", r"\S", "[a-z1]"])
            case 2:
                return dice.choice(["a", "b"]) + dice.choice("?*+")
            case 3:
                return part(depth - 1) + part(depth - 1)
            case 4:
                return f"(?:{part(depth - 1)}|{part(depth - 1)})"
            case _:
                return f"(?:{part(depth - 1)}){dice.choice(['?', '*', '+', '{2}', '{1,2}'])}"

    begin, end = dice.choice(["", "^"]), dice.choice(["", "$"])
    pattern = begin + part(3) + end
    try:
        complement(pattern)
    except Unservable:
        assert len(pattern) > 20  # Of the larger ones some are too long.
    else:
        check(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a(?=b)", r"(a)\1", "a|^b", "a{40}", "(?i)a", r"\bx", "(", "^(?:[ab]*a[ab]{9})$", r"\x{61}"],
)
def test_what_is_not_plain_is_refused(pattern: str) -> None:
    with pytest.raises(Unservable, match=r"can't be described|too long"):
        complement(pattern)
