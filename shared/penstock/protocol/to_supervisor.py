"""Messages to the supervisor from the processes that hold models: JSON, one in each line."""

from __future__ import annotations

import msgspec


class Introduce(msgspec.Struct, frozen=True, tag="introduce"):
    """The first message of a connection."""

    name: str
    """Drawn by the sender when it began: of a connection that takes the place of a broken one, the
    same."""
    holding: list[str] = []
    """Models that were granted, and haven't been left."""
    busy: list[str] = []
    """Models that the sender has work for."""


class Want(msgspec.Struct, frozen=True, tag="want"):
    """Asks for a model: it is to be started, and to stay until the sender leaves it."""

    model: str


class Unwant(msgspec.Struct, frozen=True, tag="unwant"):
    """Takes a Want back: the sender doesn't want a model any more that hasn't been granted yet."""

    model: str


class Busy(msgspec.Struct, frozen=True, tag="busy"):
    """The sender has work for a model that was granted."""

    model: str


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    """Says that the sender has no work for a model any more, and keeps it until it is asked for
    it."""

    model: str


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """The sender has no work for the model, and gives it none before it is granted again."""

    model: str


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """The model's engine core is ready."""

    model: str


class Unload(msgspec.Struct, frozen=True, tag="unload"):
    """A client wants the model unloaded as soon as it is idle."""

    model: str


ToSupervisor = Introduce | Want | Unwant | Busy | Idle | Leave | Seen | Unload
