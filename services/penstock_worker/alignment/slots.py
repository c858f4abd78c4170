"""The sequences of a step whose tokens are to be told the times of."""

from __future__ import annotations

import sys

import numpy as np

from penstock.model.config import PreparedModel
from penstock.model.media_facts import alignment_of
from penstock.model.transcription_facts import Alignment
from penstock.protocol.common import Vectors
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.alignment.interface import Crosses, Crossing
from penstock_worker.alignment.times import token_rows
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.media.interface import StepMedia
from penstock_worker.sampler import SampledToken

UNABLE = "this backend doesn't support word times"


def can_align(forward: object, prepared: PreparedModel) -> bool:
    """Whether this forward pass says when the tokens of this model are spoken."""
    return isinstance(forward, Crosses) and alignment_of(prepared.media) is not None


class Alignments:
    """Holds what was computed of each such sequence, until it has all of its tokens.

    Each is computed by a forward pass of its own, so its numbers are its own. What is held of one
    takes 4 * (encoder's rows + tokens) * heads * head_dim bytes.
    """

    def __init__(
        self, slots: Slots, media: StepMedia, forward: object, spec: Alignment | None
    ) -> None:
        """forward: a Crosses, or else nothing is told. spec: None likewise."""
        self._slots = slots
        self._media = media
        self._forward = forward if isinstance(forward, Crosses) else None
        self._spec = spec
        self._parts: dict[int, dict[int, Crossing]] = {}

    def apply(self, plan: Plan) -> None:
        """Forgets the sequences that the plan releases."""
        for number in plan.released:
            self._parts.pop(number, None)

    def reset(self) -> None:
        self._parts.clear()

    def divide(self, scheduled: list[SlotWork]) -> tuple[list[SlotWork], list[SlotWork]]:
        """Returns (works of such sequences, the others)."""
        held = self._slots.of(scheduled)
        if all(slot.pooling is None for slot in held):
            return [], scheduled
        pairs = list(zip(scheduled, held, strict=True))
        return (
            [work for work, slot in pairs if slot.pooling is not None],
            [work for work, slot in pairs if slot.pooling is None],
        )

    def compute(self, works: list[SlotWork]) -> tuple[dict[int, SampledToken], dict[int, Vectors]]:
        """Returns by slot what stands for the token of a sequence that has all of its tokens now,
        or has failed; and its times."""
        known: dict[int, SampledToken] = {}
        found: dict[int, Vectors] = {}
        for work in works:
            slot = self._slots[work.slot]
            if self._forward is None or self._spec is None:
                known[work.slot] = SampledToken(error=UNABLE)
                continue
            batch = prepare_inputs([work], self._slots, self._media)
            if slot.failed is not None:
                continue
            parts = self._parts.setdefault(work.slot, {})
            parts[work.start] = self._forward.crossing(batch)
            if work.start + work.count < len(slot.token_ids):
                continue
            whole = Crossing.joined([parts[start] for start in sorted(parts)])
            try:
                found[work.slot] = _told(whole, slot, self._spec)
                known[work.slot] = SampledToken(token=0)
            except ValueError as error:
                known[work.slot] = SampledToken(error=str(error))
        return known, found


def _told(whole: Crossing, slot: Slot, spec: Alignment) -> Vectors:
    """Raises ValueError where there are no times."""
    asked = slot.pooling
    if asked is None or len(whole.queries) <= asked.skipped:
        raise ValueError("word times need at least one token")
    rows = token_rows(whole, rows=asked.rows, skipped=asked.skipped, filter_width=spec.filter_width)
    if sys.byteorder == "big":
        rows = rows.byteswap()
    return Vectors((len(rows),), np.ascontiguousarray(rows).tobytes())
