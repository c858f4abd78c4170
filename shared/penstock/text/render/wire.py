"""Frames between a front end and its renderer: a length of four bytes, then msgpack."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

MAX_FRAME = 128 << 20
"""Bytes; the renderer's memory holds a frame, its objects and the text that is made of them."""

Outcome = Literal["text", "refused", "failed", "uncompilable", "too_long", "memory"]


class Bounds(msgspec.Struct, frozen=True, array_like=True):
    """memory: bytes of address space.  cpu: seconds of CPU time that one filling may take."""

    memory: int = 512 << 20
    cpu: float = 2.0


class Fill(msgspec.Struct, frozen=True, array_like=True):
    """A template and the variables to fill it with.

    template: a number that the front end gave it.  variables: bytes are the same as JSON, which has
    whole numbers of any size where msgpack has 64 bits.  source: with its first use in a process.
    forget: drop all templates known so far, before this one.  max_length: of the text, characters.
    """

    template: int
    variables: dict[str, Any] | bytes
    max_length: int
    source: str | None = None
    forget: bool = False


class Filled(msgspec.Struct, frozen=True, array_like=True):
    """text: what was asked for, or what went wrong.  leaving: the process has grown too large, and
    ends after this answer."""

    outcome: Outcome
    text: str
    leaving: bool = False
