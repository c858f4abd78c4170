"""Reader of SentencePiece's models: the pieces of a vocabulary, and how text is normalised.

Source of the format: sentencepiece_model.proto of the SentencePiece project, in the wire format of
Protocol Buffers (a field's number and kind as a varint, then its value).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal

import msgspec

from penstock.errors import UnsupportedModel
from penstock.prepare.gguf_vocabulary import NORMAL

KINDS: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}
MAX_PIECES = 1 << 22


class SentencePieceModel(msgspec.Struct, frozen=True, kw_only=True):
    """pieces, scores, types: by id; types are those of GGUF files.  unknown: the id for what no
    piece holds.  character_table: see `check_character_table`; empty for none.  dummy_prefix: a
    text gets a space in front.  trims: of spaces, one is left between words, none at the ends.
    named: texts of bos_token, eos_token and pad_token, as far as there are any."""

    kind: Literal["unigram", "bpe"]
    pieces: list[str]
    scores: list[float]
    types: list[int]
    unknown: int
    byte_fallback: bool
    character_table: bytes
    dummy_prefix: bool
    trims: bool
    named: dict[str, str]


def read_sentencepiece(content: bytes, where: str) -> SentencePieceModel:
    """Raises UnsupportedModel for a file that is broken, or of another kind than BPE or
    Unigram."""
    try:
        return _read(content, where)
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise UnsupportedModel(f"{where} is not a readable SentencePiece model: {error}") from None


def _read(content: bytes, where: str) -> SentencePieceModel:
    pieces: list[tuple[str, float, int]] = []
    trained: dict[int, int | bytes] = {}
    normalised: dict[int, int | bytes] = {}
    for number, value in _fields(content):
        if number == 1:
            pieces.append(_piece(_bytes(value)))
            if len(pieces) > MAX_PIECES:
                raise ValueError(f"it has more than {MAX_PIECES} pieces")
        elif number == 2:
            trained.update(_fields(_bytes(value)))
        elif number == 3:
            normalised.update(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    kind = KINDS.get(_number(trained, 3, 1))
    if kind is None or _number(trained, 24, 0) or not _number(normalised, 5, 1):
        raise UnsupportedModel(
            f"{where}: a SentencePiece model of another kind than BPE and Unigram, or one that "
            "marks no spaces or marks them behind words, is not served"
        )
    ids = {"bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}
    named = {name: _number(trained, *field) for name, field in ids.items()}
    unknown = _number(trained, 40, 0)
    if not 0 <= unknown < len(pieces):
        raise ValueError(f"its unknown piece is {unknown} of {len(pieces)}")
    return SentencePieceModel(
        kind=kind,
        pieces=[text for text, _, _ in pieces],
        scores=[score for _, score, _ in pieces],
        types=[each for _, _, each in pieces],
        unknown=unknown,
        byte_fallback=bool(_number(trained, 35, 0)),
        character_table=_bytes(normalised.get(2, b"")),
        dummy_prefix=bool(_number(normalised, 3, 1)),
        trims=bool(_number(normalised, 4, 1)),
        named={name: pieces[at][0] for name, at in named.items() if 0 <= at < len(pieces)},
    )


def _piece(content: bytes) -> tuple[str, float, int]:
    found = dict(_fields(content))
    score: float = struct.unpack("<f", _bytes(found.get(2, bytes(4))))[0]
    return _bytes(found.get(1, b"")).decode(), score, _number(found, 3, NORMAL)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where bytes are expected")
    return value


def _number(found: dict[int, int | bytes], number: int, default: int) -> int:
    value = found.get(number, default)
    if not isinstance(value, int):
        raise ValueError("bytes stand where a number is expected")
    return value


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: whole numbers, and bytes of all other values."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        match key & 7:
            case 0:
                value, at = _varint(content, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(content, at)
            case 5:
                size = 4
            case other:
                raise ValueError(f"a field of the kind {other}")
        if not 0 <= size <= len(content) - at:
            raise ValueError("it is cut short")
        yield key >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number, signed as of 64 bits, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise ValueError("a number has more than 64 bits")
    return (value if value < 1 << 63 else value - (1 << 64)), at
