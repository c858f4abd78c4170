"""Compiled grammars that no request follows now, kept for their tenants' next requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from penstock_engine.waiting.grammar_entry import GrammarEntry


class IdleGrammars:
    """Grammars without holders, by tenant, the longest unused first."""

    __slots__ = ("_count", "_lines")

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, GrammarEntry]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, entry: GrammarEntry) -> bool:
        return entry.number in self._lines.get(entry.tenant, ())

    def __iter__(self) -> Iterator[GrammarEntry]:
        for line in self._lines.values():
            yield from line.values()

    @property
    def tenants(self) -> Collection[str]:
        """Tenants that have idle grammars."""
        return self._lines.keys()

    def add(self, entry: GrammarEntry) -> None:
        """The entry isn't used any more."""
        self._lines.setdefault(entry.tenant, {})[entry.number] = entry
        self._count += 1

    def discard(self, entry: GrammarEntry) -> None:
        """The entry is used again, or gone; it may be neither here."""
        line = self._lines.get(entry.tenant)
        if line is None or line.pop(entry.number, None) is None:
            return
        self._count -= 1
        if not line:
            del self._lines[entry.tenant]

    def first(self, tenant: str) -> GrammarEntry:
        """The tenant's that has been unused for longest. Raises KeyError if it has none."""
        return next(iter(self._lines[tenant].values()))
