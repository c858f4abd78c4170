"""The names of adapters, as a front end knows them."""

from __future__ import annotations

import time
from collections.abc import Iterable

from penstock.protocol.common import MAX_ADAPTER_NAMES, NamedAdapter


class AdapterDirectory:
    """The latest state of each adapter name. Engine cores report the adapters that they know and
    are sent those that they lack, so a restarted process learns them from the others and nothing is
    stored.

    The adapters of the settings have the stamp 0; an engine core that is started again may have
    read others under the same names, and then its word is the newer one.
    """

    def __init__(self) -> None:
        self._names: dict[str, NamedAdapter] = {}

    def find(self, name: str) -> NamedAdapter | None:
        """The adapter of that name; None where there is none, or none any more."""
        found = self._names.get(name)
        return found if found is not None and found.file is not None else None

    def present(self) -> list[NamedAdapter]:
        """Adapters that are there, in the order in which they came."""
        return [each for each in self._names.values() if each.file is not None]

    def changes(self) -> list[NamedAdapter]:
        """What an engine core that was just started doesn't know: all that no settings say."""
        return [each for each in self._names.values() if each.stamp]

    def learn(self, reported: Iterable[NamedAdapter]) -> list[NamedAdapter]:
        """Takes an engine core's names of adapters. Returns those that are new."""
        changed: list[NamedAdapter] = []
        for each in reported:
            known = self._names.get(each.name)
            if known == each or (known is not None and known.stamp and known.order > each.order):
                continue
            if known is None and not self._has_room():
                continue
            self._names[each.name] = each
            changed.append(each)
        return changed

    def stamp(self, name: str) -> int:
        """The stamp of a change to a name: now, and later than that of the last known change."""
        known = self._names.get(name)
        return max(round(1000 * time.time()), 0 if known is None else known.stamp + 1)

    def _has_room(self) -> bool:
        """Whether another name has room, made as engine cores make it: the one that was unloaded
        first goes."""
        if len(self._names) < MAX_ADAPTER_NAMES:
            return True
        gone = [each for each in self._names.values() if each.file is None]
        if gone:
            del self._names[min(gone, key=lambda each: (each.stamp, each.name)).name]
        return bool(gone)
