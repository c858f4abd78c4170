"""Schemas as they are served, over a vocabulary of single bytes: no model is needed."""

from __future__ import annotations

import json
import random
from typing import Any

import llguidance
import numpy as np

from penstock.protocol.common import Grammar
from penstock_grammars.library import source_of
from penstock_grammars.unique_arrays import UniqueArrays
from penstock_worker.grammar.errors import GrammarError

TOKENIZER = llguidance.LLTokenizer("byte")
CLOSING = b'"}],:'


def source(schema: Any, kind: Any = "json_schema") -> str:
    """llguidance's text for it. Raises GrammarError."""
    return source_of(llguidance, Grammar(kind, json.dumps(schema)), {})


class Served:
    """A schema's grammar, and what is followed beside it. Raises GrammarError where the schema is
    refused."""

    def __init__(self, schema: Any, kind: Any = "json_schema") -> None:
        text = source(schema, kind)
        self._arrays = UniqueArrays.of_source(text)
        self._matcher = llguidance.LLMatcher(TOKENIZER, text, log_level=0)
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error())

    def accepts(self, text: str) -> bool:
        """Whether it is a whole document."""
        matcher = self._matcher.deep_copy()
        tokens = TOKENIZER.tokenize_str(text)
        if self._arrays is not None and not self._arrays.begin().push(text.encode()):
            return False
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def begins(self, text: str) -> bool:
        """Whether a document begins so, whatever only following it could tell."""
        tokens = TOKENIZER.tokenize_str(text)
        return self._matcher.deep_copy().try_consume_tokens(tokens) == len(tokens)

    def admits(self, value: Any) -> bool:
        return self.accepts(json.dumps(value, ensure_ascii=False))

    def walk(self, choose: random.Random, most: int = 400) -> str | None:
        """A document of bytes drawn from whatever the mask allows, those that close something
        rather; None where it didn't end."""
        matcher, made = self._matcher.deep_copy(), bytearray()
        follower = None if self._arrays is None else self._arrays.begin()
        while len(made) < most:
            allowed = allowed_bytes(matcher)
            if follower is not None:
                allowed = [byte for byte in allowed if follower.copy().push(bytes((byte,)))]
            if not allowed or (matcher.is_accepting() and choose.random() < 0.5):
                break
            closing = [byte for byte in allowed if byte in CLOSING]
            made.append(choose.choice(closing if closing and choose.random() < 0.5 else allowed))
            assert matcher.consume_token(made[-1])
            if follower is not None:
                follower.push(made[-1:])
        return made.decode("utf-8", "surrogateescape") if matcher.is_accepting() else None


def allowed_bytes(matcher: Any) -> list[int]:
    """Printable ones, where there are any: what isn't whole UTF-8 is hard to finish by chance."""
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    bits = np.unpackbits(mask, bitorder="little")[:256]
    allowed = [int(byte) for byte in np.flatnonzero(bits)]
    return [byte for byte in allowed if 32 <= byte < 127] or allowed
