"""Frames between a front end and its renderer: a length of four bytes, then msgpack."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.text.as_written import Place

MAX_FRAME = 128 << 20
"""Bytes; the renderer's memory holds a frame, its objects and the text that is made of them."""

Outcome = Literal["text", "refused", "failed", "uncompilable", "too_long", "memory", "invalid"]


class Bounds(msgspec.Struct, frozen=True, array_like=True):
    """memory: bytes of address space.  cpu: seconds of CPU time that one filling may take."""

    memory: int = 512 << 20
    cpu: float = 2.0


class TemplateSource(msgspec.Struct, frozen=True, array_like=True):
    """A template's text. special: tokens that are kept apart from the template's own where they
    occur in its variables; see `penstock.text.disarm`.  tokens: variables that are the model's own
    special tokens."""

    text: str
    special: frozenset[str] = frozenset()
    tokens: dict[str, str] = {}


class Fill(msgspec.Struct, frozen=True, array_like=True):
    """A template and the variables to fill it with.

    template: a number that the front end gave it.  variables: bytes are the same as JSON, which has
    whole numbers of any size where msgpack has 64 bits.  source: with its first use in a process.
    forget: drop all templates known so far, before this one.  max_length: of the text, characters.
    apart: the special tokens in the variables are broken before it is filled.  continued: the text
    ends where the last message does.  written: calls in `messages` whose arguments are JSON texts.
    now: its current time, Unix, seconds; None: the clock's.
    """

    template: int
    variables: dict[str, Any] | bytes
    max_length: int
    source: TemplateSource | None = None
    forget: bool = False
    apart: bool = False
    continued: bool = False
    written: list[Place] = []
    now: int | None = None


class Filled(msgspec.Struct, frozen=True, array_like=True):
    """text: what was asked for, or what went wrong.  leaving: the process has grown too large, and
    ends after this answer.  stand_ins: those in the text, as `Disarmed` has them.  param: the field
    that an invalid request is about."""

    outcome: Outcome
    text: str
    leaving: bool = False
    stand_ins: dict[int, str] = {}
    param: str | None = None
