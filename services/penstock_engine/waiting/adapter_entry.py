"""The engine core's record of one adapter, and the names of all."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from penstock.protocol.common import MAX_ADAPTER_NAMES, AdapterFile, NamedAdapter
from penstock_engine.request.request import Request, Sequence


class AdapterStage(enum.Enum):
    """The stage of an adapter in its life."""

    ABSENT = "absent"
    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"
    """Loaded, and dropped once no running sequence uses it any more."""


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
        self.unused = False  # loaded, and not used yet
        self.used = 0  # number of the start that used it last; of none: when it was loaded
        self.started = 0.0  # when workers were asked to load it
        self.deadline = (
            0.0  # when loading it will have taken too long; inf: others are loaded first
        )
        self.deaths = 0  # workers that died while they loaded it
        self.answered: set[int] = set()
        """Ranks that have loaded it."""


class AdapterNames:
    """The latest state of each adapter name, from any source: engine cores and front ends that send
    each other what they know converge. The engine core itself needs no names: it keeps them for
    front ends, which don't know what another front end was sent.

    An unloaded name is kept too, or a front end that doesn't know of it would bring it back.
    """

    def __init__(self, given: Iterable[NamedAdapter] = ()) -> None:
        self._names = {each.name: each for each in given}

    def all(self) -> list[NamedAdapter]:
        """Every name, of those unloaded too."""
        return list(self._names.values())

    def learn(self, reported: Iterable[NamedAdapter]) -> list[NamedAdapter]:
        """Returns what is new of the names. A name beyond the limit is not kept unless an unloaded
        one can make room; the first one unloaded goes."""
        changed: list[NamedAdapter] = []
        for each in reported:
            known = self._names.get(each.name)
            if known is not None and (not each.stamp or known.order >= each.order):
                continue
            if known is None and not self._has_room():
                continue
            self._names[each.name] = each
            changed.append(each)
        return changed

    def _has_room(self) -> bool:
        if len(self._names) < MAX_ADAPTER_NAMES:
            return True
        gone = [each for each in self._names.values() if each.file is None]
        if not gone:
            return False
        del self._names[min(gone, key=lambda each: (each.stamp, each.name)).name]
        return True

    def uses(self, digest: str) -> bool:
        """Whether a name stands for that adapter."""
        return any(e.file is not None and e.file.digest == digest for e in self._names.values())
