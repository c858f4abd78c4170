"""Live states of recurrent layers, in the memory of a device with a queue.

What a step does with the states is known before it is queued, and goes to the device with its other
inputs. A layer whose kernels are queued counts as computed; if the device fails, all sequences are
lost in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from penstock.model.kv_layout import KVGroup
from penstock_kernels.triton.recurrent.states import DeviceStateMemory, DeviceStateMoves
from penstock_worker.forward.interface import Batch
from penstock_worker.states.device_moves import DeviceStatesStep, HostMoves
from penstock_worker.states.live_states import LOST, Held, LiveStates


class DeviceCheckpoints:
    """Reads checkpoints, which the kernels write."""

    def __init__(self, pool: Tensor) -> None:
        """`pool`: see DeviceStateMemory."""
        self._pool = pool

    def read(self, blocks: Sequence[int], state: Tensor) -> None:
        """Queues the copies of the states of all layers, [numbers] float32, from these blocks."""
        numbers = self._pool.shape[0] * self._pool.shape[2]
        for block, part in zip(blocks, state.split(numbers), strict=False):
            part.copy_(self._pool[:, block].reshape(-1)[: len(part)])


class DeviceStates(LiveStates):
    """The states of all slots."""

    def __init__(
        self,
        sizes: Sequence[int],
        group: KVGroup,
        slots: int,
        results: Sequence[int],
        snapshots: int = 0,
    ) -> None:
        """`results`: for each layer, numbers of what its scan returns for a token. For the others
        see LiveStates."""
        super().__init__(sizes, group, slots, sum(results), snapshots)
        ends = np.cumsum([0, *results]).tolist()
        self._layers = list(zip(self._places[:-1], ends[:-1], strict=True))
        self._done, self._begun = 0, 0

    @property
    def pieces(self) -> int:
        """Blocks of a checkpoint."""
        return self._pieces

    def allocate(self, device: torch.device) -> None:
        """Takes the memory of all slots. Raises torch.OutOfMemoryError."""
        sizes = (self._slots, sum(self._sizes)), (self._slots, self._results)
        # Not a number, so that a state that wasn't loaded shows.
        with torch.inference_mode(False):  # States are also loaded outside of that mode.
            self._live, self._last = (torch.full(size, torch.nan, device=device) for size in sizes)

    def keep_in(self, blocks: Tensor) -> None:
        """Checkpoints will lie there, and snapshots in the last blocks. `blocks`: a view of the KV
        cache, [parts, blocks, bytes] uint8."""
        pool = blocks.view(torch.float32)
        self._snapshots.place(pool.shape[1] - self.own_blocks)
        self._blocks = DeviceCheckpoints(pool)
        self._memory = DeviceStateMemory(self._live, self._last, pool)

    @contextmanager
    def rehearsed(self, starts: Sequence[int]) -> Iterator[None]:
        """While the context is open, the first slots stand for sequences of so many dummy tokens,
        and their states take the memory that copies take in addition while a step is computed."""
        layers = len(self._sizes)
        self._held = {
            slot: Held(self._live[slot], [start] * layers) for slot, start in enumerate(starts)
        }
        for held in self._held.values():
            held.before = held.state.clone(), held.reached
        try:
            yield
        finally:
            self.reset()

    @contextmanager
    def moved_on(self, batch: Batch) -> Iterator[HostMoves]:
        """Says what the step of a batch, whose `slots` must be set, does with its states. It is
        queued while the context is open. If something leaves it before that, the states stand for
        the tokens before in the layers that haven't begun, and for none in one that has begun but
        hasn't queued all.

        Raises RuntimeError for a sequence whose state is that of other tokens.
        """
        if len(batch.slots) != len(batch.counts):
            raise ValueError("a batch of a model with recurrent layers says its slots")
        starts, counts = batch.starts.tolist(), batch.counts.tolist()
        works = list(zip(batch.slots, starts, counts, strict=True))
        done = [self._done_before(slot, start, start + count) for slot, start, count in works]
        self._done = self._begun = 0
        try:
            yield self._described(works, done)
            self._done = self._begun = len(self._sizes)
        finally:
            for (slot, start, count), before in zip(works, done, strict=True):
                reached, whole = self._held[slot].reached, max(before, self._done)
                for layer in range(max(whole, self._begun)):
                    reached[layer] = start + count if layer < whole else LOST

    def step(self, moves: Sequence[Tensor]) -> DeviceStatesStep:
        """`moves`: HostMoves.arrays, copied to the device."""
        return DeviceStatesStep(self._memory, DeviceStateMoves(*moves), self._layers, self._moving)

    def _moving(self, done: int, begun: int) -> None:
        """A graph's capture goes through layers that have moved on already."""
        self._done, self._begun = max(self._done, done), max(self._begun, begun)

    def _done_before(self, slot: int, start: int, end: int) -> int:
        """Returns in how many of the first layers the state stands for the work's one token
        already; in the others, it stands for those before it."""
        reached = self._held[slot].reached
        done = next((n for n, tokens in enumerate(reached) if tokens == start), len(reached))
        if any(tokens != start for tokens in reached[done:]) or (
            done and (end != start + 1 or any(tokens != end for tokens in reached[:done]))
        ):
            stands = "lost" if LOST in reached else f"that of {max(reached)} tokens"
            raise RuntimeError(f"slot {slot}: its state is {stands}; tokens follow {start}")
        return done

    def _described(self, works: Sequence[tuple[int, int, int]], done: Sequence[int]) -> HostMoves:
        """works: (slot, tokens computed before, tokens of the step), in the order of rows."""
        counts = np.array([count for _, _, count in works], np.int32)
        firsts = (np.cumsum(counts) - counts).astype(np.int32)
        behind = np.full(counts.sum(), -1, np.int32)
        blocks: list[list[int]] = []
        for (slot, start, count), first in zip(works, firsts.tolist(), strict=True):
            copies = self._held[slot].copies
            for stop in sorted(at for at in copies if start < at <= start + count):
                behind[first + stop - start - 1] = len(blocks)
                blocks.append(copies[stop])
        return HostMoves(
            np.repeat(np.arange(len(works), dtype=np.int32), counts),
            firsts,
            counts,
            np.array([slot for slot, _, _ in works], np.int32),
            np.array(done, np.int32),
            behind,
            np.array(blocks, np.int32).reshape(-1, self._pieces),
        )
