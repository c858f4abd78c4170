"""Tokenizers that are read before anybody asks for them, in the process that others are forks of.

Reading one takes a few tenths of a second of a processor, and its tables some 10 to 100 MB; forks
share both. They are found by their content: so a gateway whose engine core serves another model
than was expected reads its own.
"""

from __future__ import annotations

import hashlib
from copy import copy

from penstock.process.memory import trim_heap
from penstock.text.tokenizer import Tokenizer

_read: dict[bytes, Tokenizer] = {}


def read_ahead(content: bytes) -> None:
    """Reads a tokenizer.json for this process and its forks. Raises UnsupportedModel where that is
    none."""
    _read[_digest(content)] = _prepared(content)


def tokenizer_of(content: bytes, *, add_bos: bool, bos_token_id: int | None) -> Tokenizer:
    """The tokenizer of a tokenizer.json, prepared for requests. Raises UnsupportedModel."""
    # Most processes have read none, and needn't look through megabytes.
    found = _read.get(_digest(content)) if _read else None
    own = copy(found or _prepared(content))  # With the same tables.
    own.add_bos, own.bos_token_id = add_bos and bos_token_id is not None, bos_token_id
    return own


def _prepared(content: bytes) -> Tokenizer:
    tokenizer = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)
    tokenizer.prepare()
    trim_heap()  # Reading takes twice what a tokenizer then has.
    return tokenizer


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
