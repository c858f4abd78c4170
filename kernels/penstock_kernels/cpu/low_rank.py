"""Adapters of low rank in the kernels' layout, and which rows of a step have them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, pack, pack_floats
from penstock_kernels.cpu.memory import Arena, zeroed
from penstock_kernels.cpu.structs import PkLowRank, PkMatrix, PkRun

_NUMBER_BYTES = {MatrixKind.F32: 4, MatrixKind.BF16: 2}


@dataclass(frozen=True)
class LowRankTargets:
    """What adapters of a program may change."""

    shapes: Sequence[tuple[int, int] | None]
    """(outputs, inputs) of the matrix of each target; None where there is no matrix. Those of a
    phase are three neighbours (see Phase.low_rank)."""
    rank: int
    """The highest of an adapter."""
    kind: MatrixKind
    """Kind of the factors: F32, or BF16."""
    embedding: int = -1
    """The target whose inputs are tokens, of an EMBED; -1: there is none."""

    @property
    def columns(self) -> int:
        """Numbers that the products with an adapter's A may have."""
        return -(-self.rank // 32) * 32


class TargetFactors(NamedTuple):
    """What an adapter does to a target's product with x, all float32: gains * product + added +
    B (A x)."""

    target: int
    down: np.ndarray
    """A, [rank, inputs]."""
    up: np.ndarray
    """B, [outputs, rank]."""
    gains: np.ndarray | None = None
    """[outputs]; None: ones."""
    added: np.ndarray | None = None
    """[outputs], with `gains`."""


@dataclass(frozen=True)
class WholeMatrix:
    """A matrix of an adapter in the place of the program's own."""

    target: int
    rows: Iterable[np.ndarray]
    """Consecutive rows, [rows, columns] float32: outputs, or of an embedding tokens."""


class PackedFactor(NamedTuple):
    """A factor in the layout that csrc/low_rank.h reads."""

    struct: PkMatrix
    """Valid as long as `tiles` are."""
    tiles: np.ndarray
    """uint8, 64-byte aligned: two tiles and two, side by side by pairs of inputs, and no more than
    there are pairs of inputs. So a factor is read from its beginning to its end."""


def packed_factor(
    matrix: np.ndarray, kind: MatrixKind, *, threads: int = 1, arena: Arena
) -> PackedFactor:
    """`matrix`: [outputs, inputs]. `kind`: F32 or BF16."""
    packed = _packed(matrix, kind, threads)
    outputs, inputs = matrix.shape
    pair_bytes = 2 * 16 * _NUMBER_BYTES[kind]
    tiles = packed.tiles.reshape(-(-outputs // 16), -1, pair_bytes)[:, : -(-inputs // 2)]
    twos = len(tiles) // 2 * 2
    sides = tiles[:twos].reshape(-1, 2, *tiles.shape[1:]).swapaxes(1, 2)
    memory = arena.take(tiles.size)
    np.concatenate([sides.reshape(-1), tiles[twos:].reshape(-1)], out=memory)
    struct = PkMatrix.from_buffer_copy(packed.struct)
    struct.tiles = memory.ctypes.data
    return PackedFactor(struct, memory)


def _packed(
    matrix: np.ndarray, kind: MatrixKind, threads: int, arena: Arena | None = None
) -> PackedMatrix:
    data = np.ascontiguousarray(matrix, dtype=np.float32)
    shape = (data.shape[0], data.shape[1])
    return pack("F32", data.view(np.uint8), shape, kind=kind, threads=threads, arena=arena)


class LowRankAdapter:
    """An adapter's factors, packed. Read-only."""

    def __init__(
        self,
        targets: LowRankTargets,
        factors: Iterable[TargetFactors],
        whole: Iterable[WholeMatrix] = (),
        threads: int = 1,
    ) -> None:
        """`factors`: of the targets that it changes. `whole`: of an EMBED or a LOGITS. Raises
        ValueError for shapes that aren't the targets'."""
        self.targets = targets
        # Apart, so that those of a phase follow one another.
        self._downs, self._ups, self._rest = Arena(), Arena(), Arena()
        self._memory: list[np.ndarray] = []
        self._vectors: list[np.ndarray] = []
        self._structs = (PkLowRank * len(targets.shapes))()
        for target, down, up, gains, added in factors:
            shape = targets.shapes[target]
            if (len(up), down.shape[1]) != shape or not 1 <= len(down) == up.shape[1]:
                raise ValueError(f"{up.shape} times {down.shape} is no matrix of {shape}")
            if len(down) > targets.rank:
                raise ValueError(f"an adapter has rank {len(down)}; {targets.rank} is possible")
            if target == targets.embedding:
                # It looks up what A has for a token.
                self._structs[target].down = self._matrix(down.T, threads)
            else:
                self._structs[target].down = self._factor(down, threads, self._downs)
            self._structs[target].up = self._factor(up, threads, self._ups)
            if gains is not None and added is not None:
                self._structs[target].factors = self._vector(gains, shape)
                self._structs[target].added = self._vector(added, shape)
        for matrix in whole:
            outputs, inputs = targets.shapes[matrix.target] or (0, 0)
            shape = (inputs, outputs) if matrix.target == targets.embedding else (outputs, inputs)
            self._structs[matrix.target].whole = self._whole(matrix, shape, threads)

    def _factor(self, matrix: np.ndarray, threads: int, arena: Arena) -> PkMatrix:
        factor = packed_factor(matrix, self.targets.kind, threads=threads, arena=arena)
        self._memory.append(factor.tiles)
        return factor.struct

    def _matrix(self, matrix: np.ndarray, threads: int) -> PkMatrix:
        packed = _packed(matrix, self.targets.kind, threads, self._rest)
        self._memory.append(packed.tiles)
        return packed.struct

    def _whole(self, matrix: WholeMatrix, shape: tuple[int, int], threads: int) -> PkMatrix:
        kind = self.targets.kind
        packed = pack_floats(matrix.rows, shape, kind=kind, threads=threads, arena=self._rest)
        self._memory.append(packed.tiles)
        return packed.struct

    def _vector(self, values: np.ndarray, shape: tuple[int, int] | None) -> int:
        """Returns the address of the numbers, followed by zeros up to a whole tile."""
        if shape is None or values.shape != (shape[0],):
            raise ValueError(f"{values.shape} are no numbers of the outputs of {shape}")
        padded = zeroed(-(-len(values) // 16) * 64).view(np.float32)
        padded[: len(values)] = values
        self._vectors.append(padded)
        return int(padded.ctypes.data)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._structs)

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers."""
        return sum(each.nbytes for each in (*self._memory, *self._vectors))


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
        end = 0
        for at, (first, count, adapter) in enumerate(self.runs):
            if first < end or count < 1 or first + count > rows:
                raise ValueError(f"a run of {count} rows from {first} on doesn't fit {rows} rows")
            if adapter.targets is not targets:
                raise ValueError("an adapter was packed for another program")
            end = first + count
            of_row[first:end] = at
            structs[at] = PkRun(first, count, adapter.address)
        return structs, of_row


NO_ADAPTED_ROWS = LowRankRows(())
