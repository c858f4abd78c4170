"""Experts that are copied to the card for the rows of a step, from the tiles in the host's memory.

An expert that many rows of a step have is cheaper to copy than to compute at home. Both places give
the same bits, so the number of rows may decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.model.expert_room import LINK_BYTES, MOST_PAIRS, experts_together
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.triton.experts.level_products import expert_levels
from penstock_kernels.triton.experts.packed_tiles import table_of, unpacked
from penstock_kernels.triton.experts.placing import place_rows
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_kernels.triton.matmul_tiles import EXPERTS
from penstock_kernels.triton.rowwise.row_levels import gate_levels, row_levels
from penstock_worker.device.copy_rates import CopyRates, copy_rates
from penstock_worker.device.filling import PinnedFilling
from penstock_worker.device.side_stream import SideMark, SideQueue, side_queue
from penstock_worker.machine.memory import mib
from penstock_worker.metrics.hand_over import HandOverCounts


def pinned_memory(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns memory of the host that the device reaches by itself. Raises StartupError where the
    system doesn't allow so much to be pinned."""
    if device.type != "cuda":
        return torch.empty(shape, dtype=dtype)
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    except RuntimeError as error:
        size = mib(math.prod(shape) * dtype.itemsize)
        raise StartupError(f"cpu_experts: {size} of memory can't be pinned: {error}") from error


class ExpertBuffers:
    """Two pieces of pinned memory, and two of the card's, through which all layers' experts go in
    turn: while one is computed with, the next one is filled."""

    def __init__(self, device: torch.device, threads: int = 1) -> None:
        """`threads`: that fill the pinned memory, at most."""
        self.device = device
        self.rate = LINK_BYTES
        """Bytes per second that come to the card, once it is measured."""
        self._filling = PinnedFilling(threads)
        self._size = 0
        self._turn = 0

    def reserve(self, size: int) -> None:
        """There will be copies of so many bytes. Before the first one."""
        self._size = max(self._size, size)

    @property
    def nbytes(self) -> int:
        """Bytes of pinned memory, and of the card's as well."""
        return 2 * self._size

    @cached_property
    def _side(self) -> SideQueue:
        return side_queue(self.device)

    @cached_property
    def _slots(self) -> tuple[_Slot, _Slot]:
        return _Slot(self._size, self.device), _Slot(self._size, self.device)

    def allocate(self) -> None:
        """Takes the memory."""
        self._slots  # noqa: B018

    def measure(self, sources: Sequence[Sequence[np.ndarray]]) -> CopyRates | None:
        """Measures how fast experts come to the card, as copy_rates does. `sources`: pieces that
        the buffers have room for."""
        slot = self._slots[0]
        found = copy_rates(slot.pinned, slot.device, self._side, self._filling, sources)
        if found is not None:
            self.rate = found.experts
        return found

    @contextmanager
    def brought(self, pieces: Sequence[np.ndarray], counts: HandOverCounts) -> Iterator[Tensor]:
        """Queues a copy of the pieces, [bytes] uint8 each, one behind another. While the context is
        open, what is queued on the current stream may read it, [bytes] uint8 on the device."""
        slot, self._turn = self._slots[self._turn], 1 - self._turn
        slot.settle(counts)
        size = self._filling.fill(slot.pinned.numpy(), pieces)
        with self._side.queueing(slot.used or self._side.computed()):
            begun = self._side.mark()
            slot.device[:size].copy_(slot.pinned[:size], non_blocking=True)
            slot.copied = begun, self._side.mark()
        counts.expert_bytes += size
        self._side.let_steps_wait(slot.copied[1])
        try:
            yield slot.device[:size]
        finally:
            slot.used = self._side.computed()


class _Slot:
    """One of the two."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.pinned = pinned_memory((size,), torch.uint8, device)
        self.device = torch.empty(size, dtype=torch.uint8, device=device)
        self.copied: tuple[SideMark, SideMark] | None = None
        """Before and after the latest copy."""
        self.used: SideMark | None = None
        """After what read the latest copy."""

    def settle(self, counts: HandOverCounts) -> None:
        """Waits until the pinned memory may be written to."""
        if self.copied is None:
            return
        begun, done = self.copied
        done.synchronize()
        counts.expert_seconds += begun.elapsed_time(done) / 1000
        self.copied = None


@dataclass(frozen=True)
class StreamedExperts:
    """What the card computes of a layer whose experts are in the host's memory."""

    gates: tuple[PackedMatrix, ...]
    ups: tuple[PackedMatrix, ...]
    downs: tuple[PackedMatrix, ...]
    activation: str
    buffers: ExpertBuffers
    counts: HandOverCounts
    worth: Callable[[], int]
    """Returns `threshold`, by what is known of the rate of copies."""

    def __post_init__(self) -> None:
        self.buffers.reserve(self.together * self._bytes)

    @property
    def threshold(self) -> int:
        """Rows of a step from which on an expert is copied."""
        return self.worth()

    def some(self) -> tuple[np.ndarray, ...]:
        """Returns what is copied at a time, of the first experts."""
        return tuple(self._pieces(range(self.together)))

    @property
    def _kinds(self) -> tuple[tuple[PackedMatrix, ...], ...]:
        return self.gates, self.ups, self.downs

    @cached_property
    def _tables(self) -> tuple[Tensor | None, ...]:
        """Of levels, for gates, ups and downs."""
        return tuple(table_of(kind[0].struct.kind, self.buffers.device) for kind in self._kinds)

    @cached_property
    def _bytes(self) -> int:
        """Of an expert."""
        return sum(len(piece) for piece in self._pieces((0,)))

    @cached_property
    def together(self) -> int:
        """Experts that are copied at a time."""
        return experts_together(self._bytes, len(self.ups))

    def _pieces(self, experts: Sequence[int]) -> Iterator[np.ndarray]:
        """Yields the experts' gates, with their biases behind them, then ups, then downs."""
        for matrices in self._kinds:
            for expert in experts:
                yield matrices[expert].tiles
            for expert in experts:
                bias = matrices[expert].bias
                if bias is not None:
                    yield bias.view(np.uint8)

    def chosen_often(self, chosen: Tensor) -> np.ndarray | None:
        """Returns the number of rows of each expert, [experts] int64, where one has enough of them
        to be copied; else None. Waits for the device if there may be one."""
        if len(chosen) < self.threshold:
            return None
        pairs = chosen.flatten().long()
        found = torch.zeros(len(self.ups), dtype=torch.int64, device=chosen.device)
        counts = found.scatter_add_(0, pairs, torch.ones_like(pairs)).cpu().numpy()
        return counts if (counts >= self.threshold).any() else None

    def compute(self, division: PairsByPlace, hidden: Tensor, out: Tensor, beside: int = 0) -> None:
        """Computes the pairs of the experts that are copied, into their rows of `out`, [pairs,
        width] float32. `hidden`: [rows, width], of any float dtype. `beside`: pairs that are on
        their way to the host at a time; with these, no more are in hand than without. Beside
        `out`, what it takes doesn't depend on how many pairs there are."""
        first, begin, most = 0, 0, max(1, MOST_PAIRS - beside)
        active = len(out) // max(1, len(hidden))
        while first < len(division.copied):
            experts = division.copied[first : first + self.together]
            end = division.ends[first + len(experts) - 1]
            with self.buffers.brought(tuple(self._pieces(experts)), self.counts) as memory:
                weights = self._unpacked(memory, len(experts))
            self.counts.experts_copied += len(experts)
            for start in range(begin, end, most):
                part = slice(start, min(end, start + most))
                pairs = division.pairs[part]
                numbers = (division.numbers[part] - first).int()[:, None]
                found = self._of_group(weights, len(experts), hidden[pairs // active], numbers)
                out.index_copy_(0, pairs, found)
            first, begin = first + len(experts), end

    def _of_group(
        self,
        weights: Sequence[tuple[GGUFWeights, Tensor | None]],
        count: int,
        rows: Tensor,
        numbers: Tensor,
    ) -> Tensor:
        """Returns the results of pairs of a row and an expert, [pairs, width] float32.

        `weights`: of `count` experts, as `_unpacked` gives them. `rows`: [pairs, width]. `numbers`:
        [pairs, 1] int32, which of the experts each has.
        """
        placed = place_rows(numbers, self.together, EXPERTS.rows)
        gate, up, down = weights
        levels = row_levels(rows)
        both = [
            expert_levels(levels, each, count, placed, bias, tiles=EXPERTS)
            for each, bias in (gate, up)
        ]
        inner = gate_levels(torch.cat(both, 1), self.activation)
        self.counts.card_rows += len(rows)
        return expert_levels(inner, down[0], count, placed, down[1], tiles=EXPERTS)

    def _unpacked(self, memory: Tensor, count: int) -> list[tuple[GGUFWeights, Tensor | None]]:
        """Returns gates, ups and downs of `count` experts with their biases, [experts, outputs]
        float32. `memory`: as `_pieces` gives it."""
        found, at = [], 0
        for (matrix, *_), table in zip(self._kinds, self._tables, strict=True):
            end = at + count * matrix.size
            struct, bias = matrix.struct, None
            tiles = memory[at:end].view(count, matrix.size)
            weights = unpacked(tiles, struct.kind, struct.outputs, struct.inputs, table)
            if matrix.bias is not None:
                at, end = end, end + count * matrix.bias.nbytes
                added = memory[at:end].view(torch.float32).view(count, -1)
                # A copy, as weights are: the buffer is filled again before they are computed with.
                bias = added[:, : struct.outputs].clone()
            found.append((weights, bias))
            at = end
        return found


@dataclass(frozen=True)
class PairsByPlace:
    """Pairs of a row and one of its experts: those of the experts that are copied, then those of
    the others, of each expert together, so that its weights are read once for them. Pair p belongs
    to row p // active."""

    pairs: Tensor
    """[pairs] int64 on the device."""
    numbers: Tensor
    """The place of each one's expert in that order, [pairs] int64."""
    copied: tuple[int, ...]
    """Experts that are copied, ascending."""
    ends: tuple[int, ...]
    """Where the pairs of each of them end."""

    @staticmethod
    def of(chosen: Tensor, counts: np.ndarray, threshold: int) -> PairsByPlace:
        """`chosen`: [rows, active] int32. `counts`: rows of each expert, [experts]."""
        copied = np.flatnonzero(counts >= threshold)
        order = np.concatenate((copied, np.flatnonzero(counts < threshold)))
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        of_pairs = torch.from_numpy(places).to(chosen.device)[chosen.flatten().long()]
        numbers, pairs = of_pairs.sort(stable=True)
        ends = tuple(np.cumsum(counts[copied]).tolist())
        return PairsByPlace(pairs, numbers, tuple(copied.tolist()), ends)

    @property
    def rest(self) -> Tensor:
        """The pairs of the other experts, [n] int64."""
        return self.pairs[self.ends[-1] :]
