"""What counts before a body is decoded: values, wherever pieces of the body end, and no text."""

from __future__ import annotations

import json
import random

import pytest

from penstock.errors import InvalidRequest
from penstock_gateway.request import body
from penstock_gateway.request.body import MAX_UNITS, check_amount_now

pytestmark = pytest.mark.timeout(120)


def told(text: bytes) -> str | None:
    try:
        check_amount_now(text)
    except InvalidRequest as error:
        return str(error)
    return None


@pytest.mark.parametrize("letters", ["[,", '\\"[,', "a:{", "\\\\\\\\", "中,["])
def test_what_a_text_says_does_not_count(letters: str) -> None:
    text = letters * (200_000 // len(letters)) * 8
    assert told(json.dumps({"x": text}, ensure_ascii=False).encode()) is None


@pytest.mark.parametrize("value", ["[]", "{}", '{"a":1}', '"a"', "1"])
def test_values_count(value: str) -> None:
    many = f"[{','.join([value] * (2 * MAX_UNITS))}]"
    assert "values" in (told(many.encode()) or "")


@pytest.mark.parametrize("seed", range(5))
def test_pieces_may_end_anywhere(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Counted piece by piece, as few bytes as you like, a text has the values that it has."""
    chance = random.Random(seed)
    letters = ['"', "\\", "[", ",", ":", "a", "é", "\n"]
    texts = ["".join(chance.choices(letters, k=chance.randrange(20))) for _ in range(30)]
    text = json.dumps([texts, {each: [each, {}] for each in texts}]).encode()
    lists = [0]

    def units(found: bytes) -> float:
        lists[0] += found.count(b"[") + found.count(b"{")
        return 0.0

    monkeypatch.setattr(body, "_units", units)
    reading = body._Reading()
    at = 0
    while at < len(text):
        piece = text[at : at + chance.randrange(1, 9)]
        run = len(piece) - len(piece.rstrip(b"\\"))
        piece = piece if run % 2 == 0 else text[at : at + len(piece) + 1]
        at += len(piece)
        reading.add(piece)
    assert lists[0] == 3 + 2 * len(set(texts))


def test_a_long_name_is_refused() -> None:
    assert "name" in (told(b'{"' + b"k" * (5 << 20) + b'" : 1}') or "")
    assert told(b'{"x": "' + b"k" * (5 << 20) + b'", "y": 1}') is None
