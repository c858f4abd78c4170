"""The encoder cache's books: which rows are on the workers, and which must stay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain

from penstock_engine.kv.pool import BrokenState
from penstock_engine.media.entry import MediaEntry, MediaStage
from penstock_engine.request.request import Sequence


class Encodings:
    """Rows of encodings under a budget. The least recently used go first, unneeded ones before
    those that a known request needs; those that a running sequence is in the middle of never.

    A sequence gets room for all rows that it needs at the same time, or for none.  A running
    sequence that finds no room is the next to get some: so no two hold half of what both need, and
    none starves.

    An item whose encoding is long is divided over steps. Only one at a time is unfinished, so
    workers keep one such state; it must be finished before another item begins. It continues while
    a running sequence needs it, and is dropped when none does any more.

    capacity: rows.  step_rows: that a step may encode; one item, or a part of one, always may be.
    """

    def __init__(
        self, capacity: int, step_rows: int, on_drop: Callable[[MediaEntry], None]
    ) -> None:
        """on_drop: called with an entry whose rows are dropped."""
        self.capacity = capacity
        self.used = 0
        self.encode: dict[str, MediaEntry] = {}
        """What the next plan has encoded to the end."""
        self.partly: dict[str, MediaEntry] = {}
        """The items that the plan begins to encode, or goes on with."""
        self.dropped: list[str] = []
        """What the next plan tells to be dropped."""
        self.step_encoded = 0  # rows that it has encoded; of an item in parts, in proportion
        self.step_work = 0  # of what it has encoded: see MediaReady
        self._step_rows = step_rows
        self._on_drop = on_drop
        self._pinned: dict[Sequence, list[MediaEntry]] = {}
        self._free: OrderedDict[str, MediaEntry] = OrderedDict()
        """Encoded, without pins and not needed, the longest unused first."""
        self._wanted: OrderedDict[str, MediaEntry] = OrderedDict()
        """Encoded, without pins, and needed later."""
        self._next: Sequence | None = None
        """The sequence that found no room for its item, and gets it before others."""
        self._begun: MediaEntry | None = None
        self._new = False  # the plan that is made now is the first that has it

    def begin_step(self) -> None:
        """A plan is begun, which has nothing encoded yet."""
        self.step_encoded = self.step_work = 0

    def take(self) -> tuple[list[MediaEntry], list[MediaEntry], list[str]]:
        """(encode, partly, dropped) of the plan that is made now."""
        encode, partly, dropped = self.encode, self.partly, self.dropped
        self.encode, self.partly, self.dropped, self._new = {}, {}, [], False
        return list(encode.values()), list(partly.values()), dropped

    def hold(self, sequence: Sequence, entries: Iterable[MediaEntry]) -> bool:
        """Makes room for the rows of all these, and keeps them until `release`. False: there is
        none now."""
        new = [entry for entry in entries if sequence not in entry.pins]
        if not new:
            return True
        needed = sum(entry.rows for entry in new if not entry.held)
        if self._next not in (None, sequence) or not self._make_room(needed, new):
            if self._next is None:
                self._next = sequence
            return False
        if self._next is sequence:
            self._next = None
        pinned = self._pinned.setdefault(sequence, [])
        for entry in new:
            self.used += 0 if entry.held else entry.rows
            entry.held = True
            entry.pins[sequence] = None
            pinned.append(entry)
            self.settle(entry)
        return True

    def add(self, entry: MediaEntry, most_work: float) -> bool:
        """Has an item encoded whose rows have room, or goes on with it. Returns False if it isn't
        encoded yet, as the step has its share.

        most_work: the most that a step encodes, in units of MediaReady.work."""
        begun = self._begun
        if begun is not None and begun is not entry and not self._go_on(begun, most_work):
            return False
        return self._go_on(entry, most_work)

    def _go_on(self, entry: MediaEntry, most_work: float) -> bool:
        """Whether it is done in this step."""
        if entry.name in self.partly:
            return False
        rest, left = entry.work - entry.done, most_work - self.step_work
        part = rest if rest <= left else max(int(left), 1)
        rows = entry.rows if not entry.work else -(-entry.rows * part // entry.work)
        full = left <= 0 or self.step_encoded + rows > self._step_rows
        if self.step_encoded and full:
            return False
        self.step_encoded += rows
        self.step_work += part
        if part < rest:
            self._new = self._new or entry is not self._begun
            entry.stage, self._begun = MediaStage.ENCODING, entry
            entry.done += part
            self.partly[entry.name] = entry
            return False
        if self._begun is entry:
            self._begun = None
        self.encode[entry.name] = entry
        entry.stage = MediaStage.ENCODED
        return True

    def take_back(self, entry: MediaEntry) -> None:
        """Takes an item out of the plan: it is loaded, but not encoded, as before."""
        del self.encode[entry.name]
        self.step_encoded -= entry.rows
        self.step_work -= entry.work
        entry.stage = MediaStage.LOADED
        if not entry.pins:
            self._unhold(entry)
        self.settle(entry)
        self._on_drop(entry)

    def release(self, sequence: Sequence, entries: Iterable[MediaEntry] | None = None) -> None:
        """Notes that a sequence doesn't need the rows of these items any more; None: of any
        item."""
        if self._next is sequence and entries is None:
            self._next = None
        pinned = self._pinned.get(sequence)
        if pinned is None:
            return
        done = pinned if entries is None else [entry for entry in entries if entry in pinned]
        for entry in list(done):
            pinned.remove(entry)
            del entry.pins[sequence]
            if not entry.pins and entry.stage is not MediaStage.ENCODED:
                self._unhold(entry)
                self._give_up(entry)
            self.settle(entry)
        if not pinned:
            del self._pinned[sequence]

    def forget(self, entry: MediaEntry) -> None:
        """Has all ranks drop an item's rows, because its encoding failed on one at least."""
        if entry is self._begun:
            self._begun = None
            entry.stage = MediaStage.ENCODED  # It is dropped like one that is done.
        for sequence in list(entry.pins):
            self.release(sequence, [entry])
        self.encode.pop(entry.name, None)
        if entry.held:
            self._unhold(entry)
        self._free.pop(entry.name, None)
        self._wanted.pop(entry.name, None)
        self.dropped.append(entry.name)

    def _give_up(self, entry: MediaEntry) -> None:
        """Gives up an item that no running sequence needs. If its encoding has begun, workers
        forget that part."""
        if entry is not self._begun:
            return
        self._begun, entry.done = None, 0
        self.partly.pop(entry.name, None)
        if self._new:
            entry.stage, self._new = MediaStage.LOADED, False
        else:
            entry.stage = MediaStage.ABSENT
            self.dropped.append(entry.name)
        self._on_drop(entry)

    def settle(self, entry: MediaEntry) -> None:
        """Sorts an item anew, because the sequences that need it or its stage have changed."""
        self._free.pop(entry.name, None)
        self._wanted.pop(entry.name, None)
        if entry.stage is MediaStage.ENCODED and not entry.pins:
            (self._wanted if entry.holders else self._free)[entry.name] = entry

    def _make_room(self, needed: int, keep: list[MediaEntry]) -> bool:
        """Drops what may go until so many rows more fit; nothing where they wouldn't even then."""
        short = needed - (self.capacity - self.used)
        going: list[MediaEntry] = []
        for entry in chain(self._free.values(), self._wanted.values()):
            if short <= 0:
                break
            if entry not in keep:
                going.append(entry)
                short -= entry.rows
        if short > 0:
            return False
        for entry in going:
            self._drop(entry)
        return True

    def _drop(self, entry: MediaEntry) -> None:
        self._free.pop(entry.name, None)
        self._wanted.pop(entry.name, None)
        self._unhold(entry)
        self.dropped.append(entry.name)
        entry.stage = MediaStage.ABSENT
        self._on_drop(entry)

    def _unhold(self, entry: MediaEntry) -> None:
        entry.held = False
        self.used -= entry.rows

    def check(self, entries: Iterable[MediaEntry]) -> None:
        """Raises BrokenState unless the books agree with the entries, which are all there are."""
        if self.encode or self.partly:
            raise BrokenState(f"no plan has {[*self.encode, *self.partly]} encoded")
        known = list(entries)
        rows = sum(entry.rows for entry in known if entry.held)
        if rows != self.used or self.used > self.capacity:
            raise BrokenState(f"{rows} rows are held, {self.used} of {self.capacity} counted")
        for entry in known:
            if (entry.stage is MediaStage.ENCODING) != (entry is self._begun):
                raise BrokenState(f"{entry.name} is {entry.stage.name}, and begun or not")
            kept = entry.stage is MediaStage.ENCODED or bool(entry.pins)
            if entry.held != kept:
                raise BrokenState(f"the rows of {entry.name} are held, or not: {entry.stage.name}")
            idle = entry.name in self._free or entry.name in self._wanted
            if idle != (entry.stage is MediaStage.ENCODED and not entry.pins):
                raise BrokenState(f"{entry.name} may go, or not: {entry.stage.name}")
            if any(entry not in self._pinned.get(sequence, ()) for sequence in entry.pins):
                raise BrokenState(f"{entry.name} is pinned by who doesn't know")
        pins = sum(len(pinned) for pinned in self._pinned.values())
        if pins != sum(len(entry.pins) for entry in known):
            raise BrokenState(f"{pins} pins are known")
