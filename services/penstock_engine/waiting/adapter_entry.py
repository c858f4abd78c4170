"""The engine core's record of one adapter."""

from __future__ import annotations

import enum

from penstock.protocol.common import AdapterFile
from penstock_engine.request.request import Request, Sequence


class AdapterStage(enum.Enum):
    """The stage of an adapter in its life."""

    ABSENT = "absent"
    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"
    """Loaded, and to be dropped when nobody who runs uses it any more."""


class AdapterEntry:
    """One adapter. It has a place among max_loras unless it is ABSENT."""

    __slots__ = (
        "answered",
        "deadline",
        "deaths",
        "file",
        "holders",
        "running",
        "stage",
        "started",
        "unused",
        "used",
        "waiting",
    )

    def __init__(self, file: AdapterFile) -> None:
        self.file = file
        self.stage = AdapterStage.ABSENT
        self.holders: dict[Request, None] = {}
        """Open requests that use it."""
        self.waiting: dict[Sequence, None] = {}
        """Sequences that can't start before it is loaded, in the order in which they came."""
        self.running = 0  # sequences with a slot
        self.unused = False  # loaded, and nobody has started with it yet
        self.used = 0  # number of the start that used it last; of none: when it was loaded
        self.started = 0.0  # when workers were told to load it
        self.deadline = (
            0.0  # when loading it will have taken too long; inf: others are loaded first
        )
        self.deaths = 0  # workers that died while they loaded it
        self.answered: set[int] = set()
        """Ranks that have loaded it."""
