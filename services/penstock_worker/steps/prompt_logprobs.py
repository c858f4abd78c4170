"""Log-probabilities of the prompts' own tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.sampler.interface import NOT_FINITE
from penstock_worker.steps.feature import StepFeatures

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 128
"""Rows whose logits are held in memory at once, whatever the size of a step: 128 rows of 150,000
float32 logits take 77 MB."""


class QueuedScorer(Protocol):
    """The part of QueuedSampler that is needed here."""

    def queue_score(self, logits: Tensor, tokens: Sequence[int], count: int) -> Scores: ...


Scores = Callable[[], list[TokenLogprobs] | None]
"""Waits for what was queued and returns it; None if a logit is not finite."""

Logits: TypeAlias = "Callable[[list[SlotWork], np.ndarray], Tensor]"
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


class _Piece(NamedTuple):
    """A part of a work that one pass computes, and which of its rows are scored."""

    work: SlotWork
    low: int  # the first token whose row is scored
    high: int  # after the last one


class PromptLogprobs:
    """Computes the part of a step for which prompt log-probabilities were requested, in forward
    passes of which at most ROWS rows are scored.

    The logits of a token's row score the token after it. Cutting the works doesn't change results,
    because no number depends on how a sequence is divided into chunks. Tokens that see one another,
    such as a picture's, are in one pass; if they are more than ROWS, that pass is computed as often
    as it takes to score all of them. A slot that fails in one pass is still computed in the next:
    with pipeline stages, only the last one learns of the failure.
    """

    def __init__(self, slots: Slots, scorer: QueuedScorer, features: StepFeatures) -> None:
        self._slots = slots
        self._scorer = scorer
        media = features.find(MediaEncodings)
        self._whole_spans = media is not None and media.whole_spans

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
        return self._first_scored(work) < self._scored_end(work)

    def _first_scored(self, work: SlotWork) -> int:
        """Returns the first token of the work whose row gives a requested score; after all of them,
        the next one."""
        return max(work.start, (self._slots[work.slot].prompt_from or 1) - 1)

    def _scored_end(self, work: SlotWork) -> int:
        """Returns the end of the work, or the prompt's last token, which scores none."""
        return min(work.start + work.count, self._slots[work.slot].num_prompt - 1)

    def _rest_of(self, work: SlotWork) -> SlotWork:
        """Returns the part of a work that is left: from the prompt's last token on, whose logits go
        to the sampler, with those after it that it sees or that see it."""
        end, start = work.start + work.count, self._scored_end(work)
        whole = self._whole_at(work, start)
        start = start if whole is None else max(whole[0], work.start)
        return SlotWork(work.slot, start, end - start)

    def _whole_at(self, work: SlotWork, cut: int) -> tuple[int, int] | None:
        """Returns [start, end), the tokens that see one another, if a pass that ended before token
        `cut` would divide them."""
        media = self._slots[work.slot].media if self._whole_spans else None
        return None if media is None else media.divided_at(cut)

    def _passes(self, works: list[SlotWork]) -> Iterator[list[_Piece]]:
        """Splits the works, up to where nothing is scored any more, into passes. A slot is in a
        pass at most once, and its tokens stay in order."""
        pieces: list[_Piece] = []
        room = ROWS
        for work in works:
            at, end = work.start, self._scored_end(work)
            while at < end:
                stop = min(at + room, end)
                whole = self._whole_at(work, stop)
                too_long = whole is not None and whole[0] <= at
                if whole is not None and too_long and not pieces:
                    yield from self._again(work, at, whole[1])
                    at = whole[1]
                    continue
                if not too_long:
                    stop = stop if whole is None else whole[0]
                    pieces.append(self._piece(work, at, stop))
                    at, room = stop, room - (stop - at)
                if too_long or not room:
                    yield pieces
                    pieces, room = [], ROWS
        if pieces:
            yield pieces

    def _piece(self, work: SlotWork, start: int, end: int) -> _Piece:
        low = min(end, max(start, self._first_scored(work)))
        return _Piece(SlotWork(work.slot, start, end - start), low, end)

    def _again(self, work: SlotWork, start: int, end: int) -> Iterator[list[_Piece]]:
        """Yields the same tokens as often as it takes to score them."""
        all_of_it = SlotWork(work.slot, start, min(end, work.start + work.count) - start)
        high = min(end, self._scored_end(work))
        low = min(high, max(start, self._first_scored(work)))
        for first in range(low, high, ROWS) or [low]:  # Once, if none of them is scored.
            yield [_Piece(all_of_it, first, min(first + ROWS, high))]

    def _score(self, pieces: list[_Piece], logits: Logits, found: PromptScores) -> None:
        works = [piece.work for piece in pieces]
        firsts = np.cumsum([0, *(work.count for work in works)])
        rows = [
            np.arange(first + low - work.start, first + high - work.start)
            for (work, low, high), first in zip(pieces, firsts[:-1], strict=True)
        ]
        values = logits(works, np.concatenate(rows))
        begin = 0
        for work, low, high in pieces:
            slot, end = self._slots[work.slot], begin + high - low
            count = slot.sampling.prompt_logprobs or 0
            given = slot.token_ids[low + 1 : high + 1]
            found.add(work.slot, self._scorer.queue_score(values[begin:end], given, count))
            begin = end
