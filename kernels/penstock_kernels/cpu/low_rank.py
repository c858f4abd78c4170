"""Adapters of low rank in the kernels' layout, and which rows of a step have them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, pack
from penstock_kernels.cpu.memory import Arena
from penstock_kernels.cpu.structs import PkLowRank, PkRun


@dataclass(frozen=True)
class LowRankTargets:
    """What adapters of a program may change."""

    shapes: Sequence[tuple[int, int] | None]
    """(outputs, inputs) of the matrix of each target; None where there is no matrix. Those of a
    phase are three neighbours (see Phase.low_rank)."""
    rank: int
    """The highest of an adapter."""
    kind: MatrixKind
    """Of the factors: F32, or BF16."""

    @property
    def columns(self) -> int:
        """Numbers that the products with an adapter's A may have."""
        return -(-self.rank // 32) * 32


class LowRankAdapter:
    """An adapter's factors, packed. Read-only."""

    def __init__(
        self,
        targets: LowRankTargets,
        factors: Iterable[tuple[int, np.ndarray, np.ndarray]],
        threads: int = 1,
    ) -> None:
        """`factors`: (target, A [rank, inputs], B [outputs, rank]) of the targets that it changes,
        float32; B includes the scale. Raises ValueError for factors of other shapes."""
        self.targets = targets
        self._arena = Arena()
        self._packed: list[PackedMatrix] = []
        self._structs = (PkLowRank * len(targets.shapes))()
        for target, down, up in factors:
            shape = targets.shapes[target]
            if (len(up), down.shape[1]) != shape or not 1 <= len(down) == up.shape[1]:
                raise ValueError(f"{up.shape} times {down.shape} is no matrix of {shape}")
            if len(down) > targets.rank:
                raise ValueError(f"an adapter has rank {len(down)}; {targets.rank} is possible")
            self._structs[target].down = self._pack(down, threads).struct
            self._structs[target].up = self._pack(up, threads).struct

    def _pack(self, matrix: np.ndarray, threads: int) -> PackedMatrix:
        data = np.ascontiguousarray(matrix, dtype=np.float32)
        shape = (data.shape[0], data.shape[1])
        packed = pack(
            "F32",
            data.view(np.uint8),
            shape,
            kind=self.targets.kind,
            threads=threads,
            arena=self._arena,
        )
        self._packed.append(packed)
        return packed

    @property
    def address(self) -> int:
        return ctypes.addressof(self._structs)

    @property
    def nbytes(self) -> int:
        """Of the factors."""
        return sum(each.size for each in self._packed)


@dataclass(frozen=True)
class LowRankRows:
    """Which rows of a step have which adapter."""

    runs: Sequence[tuple[int, int, LowRankAdapter]]
    """(first row, rows, adapter), ascending, without overlap."""

    def arrays(
        self, rows: int, targets: LowRankTargets | None
    ) -> tuple[ctypes.Array[PkRun], np.ndarray]:
        """Returns the library's runs, and [rows] int32, the run of each row or -1. Raises
        ValueError for runs that don't fit the step, or adapters of another program."""
        structs = (PkRun * len(self.runs))()
        of_row = np.full(rows, -1, dtype=np.int32)
        behind = 0
        for at, (first, count, adapter) in enumerate(self.runs):
            if first < behind or count < 1 or first + count > rows:
                raise ValueError(f"a run of {count} rows from {first} on doesn't fit {rows} rows")
            if adapter.targets is not targets:
                raise ValueError("an adapter was packed for another program")
            behind = first + count
            of_row[first:behind] = at
            structs[at] = PkRun(first, count, adapter.address)
        return structs, of_row


NO_ADAPTED_ROWS = LowRankRows(())
