"""States of recurrent layers on a device, with checkpoints in a KV cache of any shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from penstock.model.kv_layout import KVGroup
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.forward.interface import Batch
from penstock_worker.layers.triton_recurrence import DeviceScan
from penstock_worker.states.device_moves import (
    HostMoves,
    mixed_moves_shapes,
    write_mixed_moves,
)
from penstock_worker.states.device_states import DeviceStates
from tests.interpreted_triton import DEVICE

EVERY, SLOTS, LAYER = 4, 4, 1
GREEDY = TokenSampling(0, temperature=0.0)


class OneLayer:
    """The states of one recurrent layer, the second of its model."""

    def __init__(self, size: int, results: int, parts: int = 3, numbers: int = 10) -> None:
        """parts, numbers: of a block: views, and float32 numbers in each."""
        self.pieces = -(-size // (parts * numbers))
        group = KVGroup(every=EVERY, blocks=self.pieces)
        self.states = DeviceStates((0, size), group, SLOTS, (0, results))
        self.states.allocate(DEVICE)
        self.pool = torch.full((parts, 40 * self.pieces, 4 * numbers), 255, dtype=torch.uint8)
        self.pool = self.pool.to(DEVICE)
        self.states.keep_in(self.pool)
        self.free = iter(np.random.default_rng(3).permutation(40 * self.pieces).tolist())

    def blocks(self, checkpoints: int) -> list[int]:
        return [next(self.free) for _ in range(checkpoints * self.pieces)]

    def admit(self, slot: int, blocks: list[int], start: int = 0) -> None:
        """blocks: the checkpoint's of `start` if there is one, then those of the next ones."""
        new = NewSequence(slot, [1], 1, 0, GREEDY, [], states=blocks, state_at=start)
        self.states.take(Plan(1, 0, [], [new], [], []))

    def step(
        self, scan: DeviceScan, work: Sequence[tuple[int, int, Tensor]], rows: int | None = None
    ) -> list[Tensor]:
        """work: (slot, tokens computed before, features of the next ones). rows: to which the step
        is padded, with features that aren't numbers. Returns each one's results, and behind them
        those of the padding."""
        counts = [len(features) for _, _, features in work]
        slots, starts = [slot for slot, _, _ in work], [start for _, start, _ in work]
        works = [SlotWork(*each) for each in zip(slots, starts, counts, strict=True)]
        self.states.take(Plan(1, 0, [], [], works, []))
        batch = Batch(np.zeros(sum(counts)), [], np.array(starts), np.array(counts), (), slots)
        features = torch.cat([features for _, _, features in work]).to(DEVICE)
        with torch.inference_mode(), self.states.moved_on(batch) as moves:
            if rows is not None:
                padding = rows - len(features)
                features = pad(features, (0, 0, 0, padding), value=torch.nan)
                moves, counts = self._padded(moves, rows), [*counts, padding]
            step = self.states.step([torch.from_numpy(each).to(DEVICE) for each in moves.arrays])
            with step.moved_on(LAYER) as own:
                return list(scan(features, own).split(counts))

    def _padded(self, moves: HostMoves, rows: int) -> HostMoves:
        """Moves as a graph of such steps has them, of at most SLOTS sequences."""
        shapes = mixed_moves_shapes(rows, SLOTS, self.pieces)
        arrays = [np.full(shape, 7_777_777, np.int32) for shape in shapes]
        write_mixed_moves(arrays, moves)
        return HostMoves(*arrays)

    def state(self, slot: int) -> Tensor:
        return self.states._live[slot]
