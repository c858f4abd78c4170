"""Log-probabilities of prompts' own tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.sampler.interface import NOT_FINITE

ROWS = 128
"""Rows whose logits are there at once, whatever a step computes: 128 of 150,000 are 77 MB."""


class QueuedScorer(Protocol):
    """The part of a QueuedSampler that is needed here."""

    def queue_score(self, logits: Tensor, tokens: Sequence[int], count: int) -> Scores: ...


Scores = Callable[[], list[TokenLogprobs] | None]
"""Waits for what was queued. None: a logit isn't a finite number."""

Logits = Callable[[list[SlotWork], np.ndarray], Tensor]
"""Computes works in one forward pass; gives the logits of some of its rows."""


class PromptScores:
    """Log-probabilities of a step's prompts, which may be on their way."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Slot, list[Scores]]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._found

    def expect(self, number: int, slot: Slot) -> None:
        """There will be some of this slot, or none."""
        self._found[number] = (slot, [])

    def add(self, number: int, scores: Scores) -> None:
        self._found[number][1].append(scores)

    def fail(self, reason: str) -> None:
        """They can't be had."""
        for slot, _ in self._found.values():
            slot.failed = slot.failed or reason

    def settle(self) -> dict[int, list[TokenLogprobs]]:
        """By slot what was found, after waiting for it. A slot whose logits aren't finite has
        failed."""
        found: dict[int, list[TokenLogprobs]] = {}
        for number, (slot, parts) in self._found.items():
            found[number] = []
            for scores in parts:
                own = scores()
                if own is None:
                    slot.failed = NOT_FINITE
                else:
                    found[number] += own
        return found


class PromptLogprobs:
    """Takes the part of a step's work that tells about prompts, in passes of at most ROWS rows.

    The row of a token says how likely the next one was.  That works are cut changes no bit: no
    number depends on how a sequence is cut into chunks.  A slot that fails in one pass is computed
    in the next all the same: where a model is spread over stages, only the last one knows.
    """

    def __init__(self, slots: Slots, scorer: QueuedScorer) -> None:
        self._slots = slots
        self._scorer = scorer

    def take(
        self, scheduled: list[SlotWork], logits: Logits
    ) -> tuple[list[SlotWork], PromptScores]:
        """(what is left to compute, what will be found), without waiting for the device."""
        found = PromptScores()
        telling = [
            work
            for work, slot in zip(scheduled, self._slots.of(scheduled), strict=True)
            if slot.prompt_from is not None and self._tells(work)
        ]
        if not telling:
            return scheduled, found
        for work in telling:
            found.expect(work.slot, self._slots[work.slot])
        for pieces in self._passes(telling):
            self._score(pieces, logits, found)
        rest = [self._after(work) if work.slot in found else work for work in scheduled]
        return [work for work in rest if work.count], found

    def _tells(self, work: SlotWork) -> bool:
        slot = self._slots[work.slot]
        wanted = slot.prompt_from
        end = min(work.start + work.count, slot.num_prompt - 1)
        return wanted is not None and max(work.start, wanted - 1) < end

    def _after(self, work: SlotWork) -> SlotWork:
        """What is left of a work: from the prompt's last token on, whose row is the sampler's."""
        end = work.start + work.count
        start = min(end, self._slots[work.slot].num_prompt - 1)
        return SlotWork(work.slot, start, end - start)

    def _passes(self, works: list[SlotWork]) -> Iterator[list[SlotWork]]:
        """The works, but for what is left of them, in pieces that fit passes. Each slot is in a
        pass once, and in the order of its tokens."""
        pieces: list[SlotWork] = []
        room = ROWS
        for work in works:
            start, end = work.start, self._after(work).start
            while start < end:
                count = min(room, end - start)
                pieces.append(SlotWork(work.slot, start, count))
                start, room = start + count, room - count
                if not room:
                    yield pieces
                    pieces, room = [], ROWS
        if pieces:
            yield pieces

    def _score(self, pieces: list[SlotWork], logits: Logits, found: PromptScores) -> None:
        spans = [_wanted(self._slots[piece.slot], piece) for piece in pieces]
        firsts = np.cumsum([0, *(piece.count for piece in pieces)])
        rows = [
            np.arange(first + low - piece.start, first + high - piece.start)
            for piece, first, (low, high) in zip(pieces, firsts[:-1], spans, strict=True)
        ]
        values = logits(pieces, np.concatenate(rows))
        begin = 0
        for piece, (low, high) in zip(pieces, spans, strict=True):
            slot, end = self._slots[piece.slot], begin + high - low
            count = slot.sampling.prompt_logprobs or 0
            given = slot.token_ids[low + 1 : high + 1]
            found.add(piece.slot, self._scorer.queue_score(values[begin:end], given, count))
            begin = end


def _wanted(slot: Slot, piece: SlotWork) -> tuple[int, int]:
    """[low, high): tokens of the piece whose rows tell what was asked for; maybe none."""
    end = piece.start + piece.count
    low = min(end, max(piece.start, (slot.prompt_from or 1) - 1))
    return low, end
