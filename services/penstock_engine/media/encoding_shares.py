"""What a step encodes, for whom, and how much of it."""

from __future__ import annotations

from penstock.protocol.to_worker import PartlyEncoded
from penstock_engine.media.encoder_pace import EncoderPace
from penstock_engine.media.encodings import Encodings
from penstock_engine.media.entry import MediaEntry, MediaStage
from penstock_engine.media.planned import PlannedEncodings
from penstock_engine.request.planned_media import PlannedMedia
from penstock_engine.request.request import Sequence
from penstock_engine.scheduler.state import SchedulerState


class EncodingShares:
    """Gives each step the share of an encoder's work that its decodes can bear.

    planned: what the plan that is being made has encoded to the end, from the beginning.
    """

    def __init__(self, scheduling: SchedulerState) -> None:
        self.planned = PlannedEncodings()
        self.begins: Sequence | None = None
        """Who has come to an item last that has room, and isn't encoded yet."""
        self._scheduling = scheduling
        self._pace = EncoderPace()
        self._share: float | None = None
        """Work that the plan may encode; None: nobody has asked yet."""

    def begin_step(self) -> None:
        """A plan is begun."""
        self._share = None

    def go_on(self, sequence: Sequence, entry: MediaEntry, encodings: Encodings) -> bool:
        """Has an item encoded for a sequence that has come to it, or a part of the item, as far as
        the step has room. Whether it was begun by that."""
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
        """Work that this step may encode: little of it beside those that decode."""
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
    number = media.numbers[entry.name]
    spans = (s for s in media.media.spans if s.item == number and s.end > computed)
    return max(computed, min((span.offset for span in spans), default=computed)) + 1
