"""Base64 is decoded in pieces, between which others have the interpreter's lock."""

from __future__ import annotations

import base64
import binascii
import random

import pytest

from penstock.media import sources

pytestmark = pytest.mark.timeout(30)


def in_one_piece(text: str) -> bytes | None:
    stripped = text.encode().translate(None, b" \r\n\t")
    try:
        return binascii.a2b_base64(stripped + b"=" * (-len(stripped) % 4), strict_mode=True)
    except binascii.Error:
        return None


def in_pieces(text: str) -> bytes | None:
    try:
        return sources._base64(text)
    except binascii.Error:
        return None


@pytest.mark.parametrize("piece", [4, 6, 9])
def test_pieces_decode_as_one(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(sources, "_PIECE", piece)
    draw = random.Random(piece)
    found = set()
    for _ in range(4000):
        text = base64.b64encode(draw.randbytes(draw.randint(0, 12))).decode()
        for _ in range(draw.randint(0, 2)):
            place = draw.randint(0, len(text))
            text = text[:place] + draw.choice(("", "=", "==", "\n", " ", "A", "!")) + text[place:]
        text = text[: draw.choice((len(text), draw.randint(0, len(text))))]
        whole = in_one_piece(text)
        assert in_pieces(text) == whole, text
        found.add(whole is None)
    assert found == {True, False}


def test_the_letters_of_urls_are_those_of_base64() -> None:
    draw = random.Random(7)
    for _ in range(200):
        data = draw.randbytes(draw.randint(0, 40))
        for text in (
            base64.urlsafe_b64encode(data).decode(),
            base64.urlsafe_b64encode(data).decode().rstrip("="),
        ):
            assert in_pieces(text) == data
