"""Messages of the supervisor to the processes that hold models: JSON, one in each line."""

from __future__ import annotations

from typing import Literal

import msgspec

Presence = Literal["absent", "preparing", "starting", "ready", "closing", "stopping", "failed"]


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one model, as the supervisor knows it."""

    model: str
    presence: Presence
    reason: str = ""
    """Why it failed."""
    retry_after: float = 0.0
    """Seconds after which it may be tried again, where it failed."""
    memory_gib: float | None = None
    """Memory that it counts for, GiB; None: not known yet."""


class ModelStates(msgspec.Struct, frozen=True, tag="states"):
    """States of all models; sent at the beginning, and whenever one changes."""

    models: list[ModelState]


class Granted(msgspec.Struct, frozen=True, tag="granted"):
    """The model is started, if it isn't there, and stays until the receiver leaves it."""

    model: str


class Reclaimed(msgspec.Struct, frozen=True, tag="reclaimed"):
    """The receiver is to leave the model as soon as the work for it that is open has ended."""

    model: str


FromSupervisor = ModelStates | Granted | Reclaimed
