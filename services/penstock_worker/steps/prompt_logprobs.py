"""Log-probabilities of the prompts' own tokens."""

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
"""Rows whose logits are held in memory at once, whatever the size of a step: 128 rows of 150,000
float32 logits take 77 MB."""


class QueuedScorer(Protocol):
    """The part of QueuedSampler that is needed here."""

    def queue_score(self, logits: Tensor, tokens: Sequence[int], count: int) -> Scores: ...


Scores = Callable[[], list[TokenLogprobs] | None]
"""Waits for what was queued and returns it; None if a logit is not finite."""

Logits = Callable[[list[SlotWork], np.ndarray], Tensor]
"""Runs one forward pass over the works, and returns the logits of the given rows."""


class PromptScores:
    """Log-probabilities of the prompts in one step, which the device may still be computing."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Slot, list[Scores]]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._found

    def expect(self, number: int, slot: Slot) -> None:
        """Registers a slot, for which there may be scores or none."""
        self._found[number] = (slot, [])

    def add(self, number: int, scores: Scores) -> None:
        self._found[number][1].append(scores)

    def fail(self, reason: str) -> None:
        """Marks all of its slots as failed."""
        for slot, _ in self._found.values():
            slot.failed = slot.failed or reason

    def settle(self) -> dict[int, list[TokenLogprobs]]:
        """Waits for the scores and returns them by slot. Marks slots with logits that are not
        finite as failed."""
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
    """Computes the part of a step for which prompt log-probabilities were requested, in forward
    passes of at most ROWS rows.

    The logits of a token's row score the token after it. Cutting the works doesn't change results,
    because no number depends on how a sequence is divided into chunks. A slot that fails in one
    pass is still computed in the next: with pipeline stages, only the last one learns of the
    failure.
    """

    def __init__(self, slots: Slots, scorer: QueuedScorer) -> None:
        self._slots = slots
        self._scorer = scorer

    def take(
        self, scheduled: list[SlotWork], logits: Logits, found: PromptScores
    ) -> list[SlotWork]:
        """Queues the passes without waiting for the device, and adds the prompts' scores to
        `found`. Returns the works that are left to compute."""
        telling = [
            work
            for work, slot in zip(scheduled, self._slots.of(scheduled), strict=True)
            if slot.prompt_from is not None and self._has_scores(work)
        ]
        if not telling:
            return scheduled
        for work in telling:
            found.expect(work.slot, self._slots[work.slot])
        for pieces in self._passes(telling):
            self._score(pieces, logits, found)
        rest = [self._rest_of(work) if work.slot in found else work for work in scheduled]
        return [work for work in rest if work.count]

    def _has_scores(self, work: SlotWork) -> bool:
        slot = self._slots[work.slot]
        wanted = slot.prompt_from
        end = min(work.start + work.count, slot.num_prompt - 1)
        return wanted is not None and max(work.start, wanted - 1) < end

    def _rest_of(self, work: SlotWork) -> SlotWork:
        """Returns the part of a work that is left: from the prompt's last token on, whose logits go
        to the sampler."""
        end = work.start + work.count
        start = min(end, self._slots[work.slot].num_prompt - 1)
        return SlotWork(work.slot, start, end - start)

    def _passes(self, works: list[SlotWork]) -> Iterator[list[SlotWork]]:
        """Splits the works, up to where `_rest_of` begins, into passes of at most ROWS rows. A slot
        is in a pass at most once, and its tokens stay in order."""
        pieces: list[SlotWork] = []
        room = ROWS
        for work in works:
            start, end = work.start, self._rest_of(work).start
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
        spans = [_scored_span(self._slots[piece.slot], piece) for piece in pieces]
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


def _scored_span(slot: Slot, piece: SlotWork) -> tuple[int, int]:
    """Returns [low, high), the tokens of the piece whose rows give requested scores; may be
    empty."""
    end = piece.start + piece.count
    low = min(end, max(piece.start, (slot.prompt_from or 1) - 1))
    return low, end
