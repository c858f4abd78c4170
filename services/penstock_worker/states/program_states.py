"""Live states of recurrent layers that a program of the CPU kernels moves on, all layers in one
call: what a step does with them is said before it, instead of layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from penstock_kernels.cpu.recurrent import StateMemory, StateMoves
from penstock_worker.forward.interface import Batch
from penstock_worker.states.live_states import LOST
from penstock_worker.states.slot_states import SlotStates


class ProgramStates(SlotStates):
    """The states of all slots, of a rank that has all layers."""

    def allocate(self, parts: Sequence[np.ndarray]) -> None:
        super().allocate(parts)
        last = np.zeros((self._slots, self._results), dtype=np.float32)
        self._memory = StateMemory(self._live.numpy(), last, parts)

    @contextmanager
    def moved_on(self, batch: Batch) -> Iterator[StateMoves]:
        """Says what the step of a batch, whose `slots` must be set, does with its states. They
        stand for its tokens when the context is left. If an Exception leaves it, nothing has been
        done: the library raises none once it has begun. Anything else, such as StepCancelled, ends
        these sequences' states.

        Raises RuntimeError for a sequence whose state is that of other tokens.
        """
        if len(batch.slots) != len(batch.counts):
            raise ValueError("a batch of a model with recurrent layers says its slots")
        starts, counts = batch.starts.tolist(), batch.counts.tolist()
        works = list(zip(batch.slots, starts, counts, strict=True))
        again = [self._is_again(slot, start, start + count) for slot, start, count in works]
        step = self._described(works, again)
        before = [self._held[slot].reached for slot in batch.slots]
        self._advance(batch.slots, [LOST] * len(works))
        try:
            yield step
        except Exception:
            for slot, reached in zip(batch.slots, before, strict=True):
                self._held[slot].reached = reached
            raise
        self._advance(batch.slots, [start + count for _, start, count in works])

    def _advance(self, slots: Sequence[int], tokens: Sequence[int]) -> None:
        for slot, reached in zip(slots, tokens, strict=True):
            self._held[slot].reached = [reached] * len(self._sizes)

    def _is_again(self, slot: int, start: int, end: int) -> bool:
        """Whether the state stands for the work's one token already; else for those before it."""
        reached = self._held[slot].reached[0]
        if reached != start and not reached == end == start + 1:
            stands = "lost" if reached == LOST else f"that of {reached} tokens"
            raise RuntimeError(f"slot {slot}: its state is {stands}; tokens follow {start}")
        return reached != start

    def _described(
        self, works: Sequence[tuple[int, int, int]], again: Sequence[bool]
    ) -> StateMoves:
        """works: (slot, tokens computed before, tokens of the step), in the order of rows."""
        firsts, behind, blocks, row = [0], list[int](), list[list[int]](), 0
        for slot, start, count in works:
            copies, end = self._held[slot].copies, start + count
            for stop in sorted(at for at in copies if start < at <= end):
                behind.append(row + stop - start - 1)
                blocks.append(copies[stop])
            firsts.append(len(behind))
            row += count
        return StateMoves(
            self._memory,
            slots=_int32([slot for slot, _, _ in works]),
            again=_int32(again),
            first_checkpoint=_int32(firsts),
            behind=_int32(behind),
            blocks=_int32(blocks).reshape(-1, self._pieces),
        )


def _int32(values: Sequence[object]) -> np.ndarray:
    return np.array(values, dtype=np.int32)
