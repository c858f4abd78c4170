"""All known items of media, and which sequences need which."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock_engine.kv.pool import BrokenState
from penstock_engine.media.encodings import Encodings
from penstock_engine.media.entry import MediaEntry, MediaStage
from penstock_engine.media.loads import Loads
from penstock_engine.request.request import Sequence
from penstock_engine.request.timeline import Clock
from penstock_engine.sessions.frontends import Frontends
from penstock_engine.sessions.workers import Workers


class MediaBooks:
    """An item is known while somebody needs it or workers have something of it.

    loads: its way to the workers.  encodings: its rows.
    """

    def __init__(
        self,
        frontends: Frontends,
        workers: Workers,
        clock: Clock,
        on_gone: Callable[[MediaEntry], None],
        *,
        load_bytes: int,
        step_rows: int,
    ) -> None:
        """on_gone: called with an item that workers have lost or dropped."""
        self.entries: dict[str, MediaEntry] = {}
        """Items by their names between engine core and workers."""
        self.needs: dict[Sequence, list[MediaEntry]] = {}
        """What each of those that wait for items, are about to start or run still needs."""
        self.loads = Loads(load_bytes, frontends, workers, self.gone)
        self.encodings = Encodings(0, step_rows, self.gone)
        self._step_rows = step_rows
        self._clock = clock
        self._on_gone = on_gone

    def renew(self, rows: int) -> None:
        """Begins anew with another worker, or none: nothing is on it. rows: how many it keeps."""
        self.entries.clear()
        self.needs.clear()
        self.loads.clear()
        self.encodings = Encodings(rows, self._step_rows, self.gone)

    def attach(self, sequence: Sequence, computed: int) -> list[MediaEntry]:
        """Returns the items that a sequence needs after so many computed tokens; from now on it
        holds these."""
        media = sequence.request.media
        before = self.needs.get(sequence, [])
        needs = []
        for item in [] if media is None else media.needed(computed):
            entry = self.entries.get(item.name)
            if entry is None:
                entry = self.entries[item.name] = MediaEntry(item)
            needs.append(entry)
            if sequence not in entry.holders:
                entry.holders[sequence] = None
                self._rank(entry)
        self.needs[sequence] = needs
        self.unneed(sequence, [entry for entry in before if entry not in needs])
        return needs

    def detach(self, sequence: Sequence) -> None:
        """Notes that a sequence needs none of its items any more."""
        self.unneed(sequence, self.needs.pop(sequence, []))

    def unneed(self, sequence: Sequence, entries: Iterable[MediaEntry]) -> None:
        """Notes that a sequence doesn't need these items any more."""
        needs = self.needs.get(sequence)
        for entry in list(entries):
            if needs is not None and entry in needs:
                needs.remove(entry)
            del entry.holders[sequence]
            if entry.stage is MediaStage.ASKED and entry.source is sequence.request:
                self._ask_another(entry)
            elif entry.stage is MediaStage.ABSENT and not entry.holders:
                self.gone(entry)
            self._rank(entry)

    def _ask_another(self, entry: MediaEntry) -> None:
        """Whom it was asked of does not need it any more, unless another of its sequences does."""
        if any(holder.request is entry.source for holder in entry.holders):
            return
        if entry.holders:
            self.loads.ask(entry, self._clock.now)
        else:
            self.drop(entry)

    def drop(self, entry: MediaEntry) -> None:
        """Workers forget what they have of it, which is not encoded."""
        self.loads.drop(entry)
        self.gone(entry)

    def _rank(self, entry: MediaEntry) -> None:
        self.loads.settle(entry)
        self.encodings.settle(entry)

    def gone(self, entry: MediaEntry) -> None:
        """Forgets an encoding that was dropped. An item that no plan has had encoded goes back to
        those that are loaded."""
        if entry.stage is MediaStage.LOADED:
            self.loads.returned(entry)
            return
        if not entry.holders:
            self.entries.pop(entry.name, None)
        self._on_gone(entry)

    def check(self) -> None:
        """Raises BrokenState unless the books agree."""
        self.loads.check(self.entries.values())
        self.encodings.check(self.entries.values())
        for sequence, needs in self.needs.items():
            if any(self.entries.get(entry.name) is not entry for entry in needs):
                raise BrokenState(f"sequence {sequence.index} needs what nobody knows")
            if any(sequence not in entry.holders for entry in needs):
                raise BrokenState(f"sequence {sequence.index} needs what it doesn't hold")
        held = sum(len(entry.holders) for entry in self.entries.values())
        if held != sum(map(len, self.needs.values())):
            raise BrokenState(f"{held} needs are known")
        for entry in self.entries.values():
            if entry.stage is MediaStage.ABSENT and not entry.holders:
                raise BrokenState(f"{entry.name} is known for nothing")
