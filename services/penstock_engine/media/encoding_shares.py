"""What a step encodes, for whom, and how much of it."""

from __future__ import annotations

import math

from penstock.protocol.to_worker import PartlyEncoded
from penstock_engine.media.encodings import Encodings
from penstock_engine.media.entry import MediaEntry, MediaStage
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_in_flight import PlannedMedia
from penstock_engine.scheduler.state import SchedulerState


class EncodingShares:
    """Gives each step the share of an encoder's work that its decodes can bear.

    planned: what the plan that is being made has encoded to the end, from the beginning.
    """

    def __init__(self, scheduling: SchedulerState) -> None:
        self.planned = PlannedEncodings()
        self.begins: Sequence | None = None
        """The sequence that was the latest to come to an item which has room, and isn't encoded
        yet."""
        self._scheduling = scheduling
        self._pace = EncoderPace()
        self._share: float | None = None
        """Work that the plan may still encode; None before the first question."""

    def begin_step(self) -> None:
        """A plan is begun."""
        self._share = None

    def go_on(self, sequence: Sequence, entry: MediaEntry, encodings: Encodings) -> bool:
        """Has an item, or a part of it, encoded for a sequence that has come to it, as far as the
        step has room. Returns whether that began the item."""
        new = entry.stage is MediaStage.LOADED
        if not encodings.add(entry, self._step_share()):
            self.begins = sequence
        if not new or entry.stage is MediaStage.LOADED:
            return False
        if entry.stage is MediaStage.ENCODED:
            self.planned.add(entry, sequence)
        else:
            self.planned.charge(entry, sequence)
        return True

    def _step_share(self) -> float:
        """Returns the encoding work allowed in this step: little of it while others decode."""
        if self._share is None:
            running = self._scheduling.running.values()
            decodes = sum(s.progress.scheduled >= len(s.request.prompt_token_ids) for s in running)
            self._share = self._pace.within(self._scheduling.policy.pace.aside(decodes))
        return self._share

    def take(self, encodings: Encodings) -> PlannedMedia:
        """What the plan that is made now tells workers."""
        rows, work = encodings.step_encoded, encodings.step_work
        encode, partly, dropped = encodings.take()
        self.planned.sent()
        needed_by: dict[Sequence, int] = {}
        for entry in [*encode, *partly]:
            for sequence in entry.pins:
                end = _first_needing(sequence, entry)
                needed_by[sequence] = max(end, needed_by.get(sequence, 0))
        names = [entry.name for entry in encode]
        parts = [PartlyEncoded(entry.name, entry.done) for entry in partly]
        return PlannedMedia(names, parts, dropped, rows, work, needed_by)

    def settled(self, media: PlannedMedia, seconds: float) -> None:
        """A step was settled that had these media. seconds: that it encoded them."""
        self._pace.observe(media.work, seconds)


def _first_needing(sequence: Sequence, entry: MediaEntry) -> int:
    """How many tokens a sequence has after the first whose computing needs the item's rows, of
    those that are left to compute."""
    media, computed = sequence.request.media, sequence.progress.computed
    if media is None:
        return computed + 1
    if media.media.joined:  # Rows of any item are needed with the first token that one stands at.
        return max(computed, media.media.spans[0].offset) + 1
    number = media.numbers[entry.name]
    spans = (s for s in media.media.spans if s.item == number and s.end > computed)
    return max(computed, min((span.offset for span in spans), default=computed)) + 1


UNKNOWN = 100
"""Millions of multiplications that a step may encode until their cost is known."""

WEIGHT = 0.25
"""Weight of the newest step in what is known."""

LEAST = 10
"""Least work of a step from whose time something is learnt: every step may hold as much. A step
that was held up by something else would otherwise be the last of which anything is learnt."""


class EncoderPace:
    """Learns how many seconds a unit of MediaReady.work takes."""

    def __init__(self) -> None:
        self._each: float | None = None  # seconds

    def observe(self, work: int, seconds: float) -> None:
        """Notes a settled step that encoded so much work. seconds: how long it took; 0 if that is
        unknown."""
        if work < LEAST or seconds <= 0.0:
            return
        new = seconds / work
        self._each = new if self._each is None else self._each + WEIGHT * (new - self._each)

    def within(self, seconds: float) -> float:
        """The most work that takes no longer than `seconds`, at least LEAST."""
        if math.isinf(seconds):
            return math.inf
        return UNKNOWN if self._each is None else max(LEAST, seconds / self._each)


class PlannedEncodings:
    """The items that a plan has encoded: for which sequence each was put into the plan, and which
    sequences' tokens need it there.

    A sequence may find no KV blocks then, and get no tokens. An item that only such sequences need
    is taken back: in a plan that isn't sent it would take a step's share from others for ever.
    """

    def __init__(self) -> None:
        self._first: dict[str, Sequence] = {}
        """The sequence for which each item was put into the plan, by the item's name."""
        self._users: dict[str, dict[Sequence, None]] = {}
        self._costs: dict[Sequence, int] = {}
        """Rows that were encoded for each sequence, and not charged yet."""

    def add(self, entry: MediaEntry, sequence: Sequence) -> None:
        """Notes that the plan has all of an item encoded for a sequence."""
        self._first[entry.name] = sequence
        self._users[entry.name] = {sequence: None}
        self.charge(entry, sequence)

    def charge(self, entry: MediaEntry, sequence: Sequence) -> None:
        """Charges the encoding of an item, in this plan and perhaps later ones, to a sequence."""
        self._costs[sequence] = self._costs.get(sequence, 0) + entry.rows
        if sequence.timeline is not None:
            sequence.timeline.encoded_items += 1

    def use(self, entry: MediaEntry, sequence: Sequence) -> None:
        """Notes a sequence whose tokens in this plan need the item, if the plan has the item
        encoded."""
        users = self._users.get(entry.name)
        if users is not None:
            users[sequence] = None

    def unused(self, sequence: Sequence) -> list[str]:
        """Notes that a sequence gets no tokens. Returns the names of items that the plan has
        encoded for no sequence now."""
        for users in self._users.values():
            users.pop(sequence, None)
        return [name for name, users in self._users.items() if not users]

    def take_back(self, entry: MediaEntry) -> None:
        """The plan doesn't encode it after all, so no tenant is charged for it."""
        del self._users[entry.name]
        first = self._first.pop(entry.name)
        if first in self._costs:
            self._costs[first] -= entry.rows
        if first.timeline is not None:
            first.timeline.encoded_items -= 1

    def take_cost(self, sequence: Sequence) -> int:
        """Rows that it is to be charged for."""
        return self._costs.pop(sequence, 0) if self._costs else 0

    def sent(self) -> None:
        """The plan is made."""
        self._first.clear()
        self._users.clear()

    def clear(self) -> None:
        """Forgets everything: there is no worker any more."""
        self.sent()
        self._costs.clear()
