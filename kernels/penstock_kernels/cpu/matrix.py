"""Weights packed for the kernels. Quantised values stay as they are, in another order."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.memory import Arena, Scratch, zeroed
from penstock_kernels.cpu.structs import PkMatrix


class MatrixKind(enum.IntEnum):
    """How a packed matrix stores its values (csrc/matrix_types.h)."""

    F32 = 0
    BF16 = 1
    U4H = 2
    U4W = 3
    U8H = 4
    U8W = 5
    S8H = 6
    S8W16 = 7
    U4W16 = 8
    T4H = 9
    T4W = 10
    F4W = 11
    F4B16 = 12
    U5H = 13
    U4D = 14
    U5D = 15
    U4K = 16
    U5K = 17
    S6K = 18
    S3K = 19
    U2K = 20


@dataclass(frozen=True)
class SourceFormat:
    """A format of matrices in checkpoints that the library can unpack."""

    number: int
    """The format's PkSource in csrc/interface.h."""
    elements: int
    """Values per block. Rows consist of whole blocks."""
    bytes: int
    """Bytes per block."""
    kind: MatrixKind
    """The kind that preserves the values."""


SOURCES = {
    "F32": SourceFormat(0, 1, 4, MatrixKind.F32),
    "F16": SourceFormat(1, 1, 2, MatrixKind.F32),
    "BF16": SourceFormat(2, 1, 2, MatrixKind.BF16),
    "Q4_0": SourceFormat(3, 32, 18, MatrixKind.U4D),
    "Q4_1": SourceFormat(4, 32, 20, MatrixKind.U4H),
    "Q5_0": SourceFormat(5, 32, 22, MatrixKind.U5D),
    "Q5_1": SourceFormat(6, 32, 24, MatrixKind.U5H),
    "Q8_0": SourceFormat(7, 32, 34, MatrixKind.S8H),
    "Q4_K": SourceFormat(8, 256, 144, MatrixKind.U4K),
    "Q5_K": SourceFormat(9, 256, 176, MatrixKind.U5K),
    "Q6_K": SourceFormat(10, 256, 210, MatrixKind.S6K),
    "Q2_K": SourceFormat(20, 256, 84, MatrixKind.U2K),
    "Q3_K": SourceFormat(21, 256, 110, MatrixKind.S3K),
    "IQ4_NL": SourceFormat(22, 32, 18, MatrixKind.T4H),
    "IQ4_XS": SourceFormat(23, 256, 136, MatrixKind.T4W),
    "MXFP4": SourceFormat(24, 32, 17, MatrixKind.F4W),
    "NVFP4": SourceFormat(25, 64, 36, MatrixKind.F4B16),
}
"""Formats of unpacked matrices, by the checkpoints' names."""

PLAIN = tuple(name for name, source in SOURCES.items() if source.elements == 1)
"""Unquantised formats, which can be packed as F32, BF16 or S8H (int8 in groups of 32)."""


class NotFiniteError(ValueError):
    """A quantised matrix has a scale or a minimum that is NaN or infinite."""


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix in the kernels' layout."""

    struct: PkMatrix
    """What the kernels read; valid as long as this object is alive."""
    tiles: np.ndarray
    """uint8, 64-byte aligned."""
    bias: np.ndarray | None
    """What is added to each output, [outputs, rounded up to 16] float32; None for nothing."""

    @property
    def size(self) -> int:
        """Size of the tiles, bytes."""
        return int(self.tiles.nbytes)

    @property
    def form(self) -> int:
        """The forms in which the matrix reads its input: bits of csrc/matrix_types.h's pk::Form."""
        return _FORMS.get(MatrixKind(self.struct.kind), 4)

    @property
    def absent(self) -> bool:
        """Whether another rank has it (see `elsewhere`)."""
        return not self.struct.tiles

    def part(self, outputs: range) -> PackedMatrix:
        """Returns a matrix of some outputs, over the same tiles. Raises ValueError for a range that
        doesn't begin at a whole tile."""
        if outputs.start % 16 or outputs.stop > self.struct.outputs:
            raise ValueError(f"{outputs} of {self.struct.outputs} outputs don't begin at a tile")
        size = len(self.tiles) // -(-self.struct.outputs // 16)
        first, last = outputs.start // 16, -(-outputs.stop // 16)
        tiles = self.tiles[first * size : last * size]
        bias = None if self.bias is None else self.bias[outputs.start : 16 * last]
        struct = PkMatrix.from_buffer_copy(self.struct)
        struct.outputs, struct.tiles = len(outputs), tiles.ctypes.data
        struct.bias = None if bias is None else bias.ctypes.data
        return PackedMatrix(struct, tiles, bias)

    def elsewhere(self) -> PackedMatrix:
        """Returns a matrix of the same shape and kind that another rank has: it holds nothing."""
        struct = PkMatrix.from_buffer_copy(self.struct)
        struct.tiles = struct.bias = None
        return PackedMatrix(struct, np.empty(0, dtype=np.uint8), None)

    def with_bias(self, bias: np.ndarray) -> PackedMatrix:
        """Returns a matrix over the same tiles that adds `bias`, [outputs] float32."""
        if np.shape(bias) != (self.struct.outputs,):
            raise ValueError(f"bias has shape {np.shape(bias)}; ({self.struct.outputs},) is needed")
        padded = _padded_bias(bias)
        struct = PkMatrix.from_buffer_copy(self.struct)
        struct.bias = padded.ctypes.data
        return PackedMatrix(struct, self.tiles, padded)


_HALVES = (
    *(MatrixKind.S8W16, MatrixKind.U4W16, MatrixKind.F4B16),
    *(MatrixKind.S3K, MatrixKind.U2K),
)
_SUPER_GROUPS = {MatrixKind.U4K: 16, MatrixKind.U5K: 16, MatrixKind.S6K: 24}
_FORMS = {MatrixKind.F32: 1, MatrixKind.BF16: 2, **dict.fromkeys(_HALVES, 12), **_SUPER_GROUPS}


def _padded_bias(bias: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-len(bias) // 16) * 16, dtype=np.float32)
    padded[: len(bias)] = bias
    return padded


def pack(
    source: str,
    data: np.ndarray,
    shape: tuple[int, int],
    *,
    kind: MatrixKind | None = None,
    order: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    threads: int = 1,
    arena: Arena | None = None,
) -> PackedMatrix:
    """Packs a whole matrix.

    `source`: a key of SOURCES.
    `data`: the matrix's bytes, uint8, contiguous, row by row.
    `shape`: (outputs, inputs).
    `kind`: by default, the source's own.
    `order`: [outputs] int32, the index at which each source row is stored; by default its own.
    `bias`: [outputs] float32.
    `arena`: where the tiles are allocated.

    Raises ValueError if source, kind and width don't fit together, if data has another size, or if
    order is no permutation; NotFiniteError, which is one, for broken scales.
    """
    outputs, inputs = shape
    if source not in SOURCES:
        raise ValueError(f"{source} can't be packed; {', '.join(SOURCES)} can")
    _check_shape(shape)
    data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if data.nbytes != outputs * _row_bytes(source, inputs):
        raise ValueError(f"{data.nbytes} bytes are no {source} matrix of shape {shape}")
    if order is not None:
        order = _checked_order(order, outputs)
    kind = SOURCES[source].kind if kind is None else kind
    chunk = (SOURCES[source].number, data, order)
    return _packed([chunk], shape, kind, bias, threads, arena)


LEVELS = 64
"""PkSource of levels that the caller has read."""
LEVELS_BLOCK = np.dtype([("scales", "<f4", (2,)), ("minima", "<f4", (2,)), ("levels", "u1", (32,))])
"""32 inputs: weight = scale * level + minimum, or scale * (level - 128) in the kinds S8H and S8W16.
The second numbers are those of the latter 16 inputs, and count in kinds that end in 16."""


def pack_levels(
    chunks: Iterable[np.ndarray],
    shape: tuple[int, int],
    *,
    kind: MatrixKind,
    order: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    threads: int = 1,
    arena: Arena | None = None,
) -> PackedMatrix:
    """Packs levels with scales and minima, a few rows at a time. The kinds that end in H round
    scales and minima to float16.

    `chunks`: consecutive rows, [rows, inputs / 32 rounded up] of LEVELS_BLOCK. Levels of the kinds
    U4H and U4W are 0 to 15; those of inputs that don't exist are 0.
    The rest as in `pack`.

    Raises ValueError for a kind without levels, or chunks of another shape.
    """
    _check_shape(shape)
    if kind in (MatrixKind.F32, MatrixKind.BF16):
        raise ValueError(f"levels can't be packed as {kind.name}")
    parts = ((LEVELS, _as_bytes(chunk, -(-shape[1] // 32), LEVELS_BLOCK)) for chunk in chunks)
    return _packed(_placed(parts, shape[0], order), shape, kind, bias, threads, arena)


def pack_blocks(
    source: str,
    chunks: Iterable[np.ndarray],
    shape: tuple[int, int],
    *,
    factor: float = 1.0,
    order: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    threads: int = 1,
    arena: Arena | None = None,
) -> PackedMatrix:
    """Packs blocks of MXFP4 or NVFP4 as `pack` does, a few rows at a time, filled up to whole ones.

    `chunks`: consecutive rows, [rows, bytes of a row] uint8.
    `factor`: of all weights of NVFP4.

    Raises ValueError for chunks of another shape, and for a factor of another source.
    """
    _check_shape(shape)
    block = SOURCES[source]
    if factor != 1.0 and block.kind is not MatrixKind.F4B16:
        raise ValueError(f"matrices of {source} have no factor")
    columns = -(-shape[1] // block.elements) * block.bytes
    parts = ((block.number, _as_bytes(chunk, columns, np.dtype(np.uint8))) for chunk in chunks)
    placed = _placed(parts, shape[0], order)
    return _packed(placed, shape, block.kind, bias, threads, arena, factor)


def pack_floats(
    chunks: Iterable[np.ndarray],
    shape: tuple[int, int],
    *,
    kind: MatrixKind,
    order: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    threads: int = 1,
    arena: Arena | None = None,
) -> PackedMatrix:
    """Packs a matrix of kind F32 by default, as `pack` does, a few rows at a time: `chunks` are
    consecutive rows, [rows, inputs] float32. Raises ValueError for chunks of another shape, or a
    kind for GGUF types only."""
    _check_shape(shape)
    number, size = SOURCES["F32"].number, np.dtype(np.float32)
    parts = ((number, _as_bytes(chunk, shape[1], size)) for chunk in chunks)
    return _packed(_placed(parts, shape[0], order), shape, kind, bias, threads, arena)


def _as_bytes(chunk: np.ndarray, columns: int, dtype: np.dtype) -> np.ndarray:
    if chunk.ndim != 2 or chunk.shape[1] != columns or chunk.dtype != dtype:
        raise ValueError(f"a chunk is {chunk.dtype} {chunk.shape}; (rows, {columns}) is needed")
    return np.ascontiguousarray(chunk).view(np.uint8).reshape(len(chunk), -1)


_Chunk = tuple[int, np.ndarray, np.ndarray | None]
"""PkSource, the rows' bytes, and the index at which each row is stored."""


def _placed(
    parts: Iterable[tuple[int, np.ndarray]], outputs: int, order: np.ndarray | None
) -> Iterator[_Chunk]:
    places = np.arange(outputs, dtype=np.int32)
    if order is not None:
        places = _checked_order(order, outputs)
    start = 0
    for number, rows in parts:
        end = start + len(rows)
        if end > outputs:
            raise ValueError(f"the chunks have {end} rows or more; {outputs} are needed")
        yield number, rows, places[start:end]
        start = end
    if start != outputs:
        raise ValueError(f"the chunks have {start} rows; {outputs} are needed")


def _packed(
    chunks: Iterable[_Chunk],
    shape: tuple[int, int],
    kind: MatrixKind,
    bias: np.ndarray | None,
    threads: int,
    arena: Arena | None,
    factor: float = 1.0,
) -> PackedMatrix:
    outputs, inputs = shape
    if bias is not None and np.shape(bias) != (outputs,):
        raise ValueError(f"bias has shape {np.shape(bias)}; ({outputs},) is needed")
    _check_threads(threads)
    library = load()
    size = library.pk_matrix_bytes(kind, outputs, inputs)
    tiles = zeroed(size) if arena is None else arena.take(size)
    for number, data, order in chunks:
        packed = library.pk_pack(
            number,
            data.ctypes.data,
            outputs if order is None else len(order),
            inputs,
            kind,
            tiles.ctypes.data,
            outputs,
            None if order is None else order.ctypes.data,
            threads,
        )
        if packed == -2:
            raise NotFiniteError(f"a matrix of shape {shape} holds scales that aren't finite")
        if packed != 0:
            raise ValueError(f"a matrix of shape {shape} can't be packed as {kind.name}")
    padded = None if bias is None else _padded_bias(bias)
    added = None if padded is None else padded.ctypes.data
    struct = PkMatrix(kind, outputs, inputs, factor, tiles.ctypes.data, added)
    return PackedMatrix(struct, tiles, padded)


def _check_shape(shape: tuple[int, int]) -> None:
    if min(shape) < 1:
        raise ValueError(f"a matrix has at least one row and one column, not shape {shape}")


def _checked_order(order: np.ndarray, outputs: int) -> np.ndarray:
    order = np.ascontiguousarray(order, dtype=np.int32)
    if order.shape != (outputs,) or not np.array_equal(np.sort(order), np.arange(outputs)):
        raise ValueError(f"order must hold each of 0 to {outputs - 1} once")
    return order


def _check_threads(threads: int) -> None:
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")


def _row_bytes(source: str, inputs: int) -> int:
    block = SOURCES[source]
    if inputs % block.elements:
        raise ValueError(
            f"rows of {source} hold a multiple of {block.elements} values, not {inputs}"
        )
    return inputs // block.elements * block.bytes


def product(
    x: np.ndarray,
    matrix: PackedMatrix,
    *,
    two_parts: bool = False,
    threads: int = 1,
    scratch: Scratch | None = None,
) -> np.ndarray:
    """x @ matrix.T + bias, for x of [rows, inputs] float32. Returns [rows, outputs] float32.

    With quantised matrices, x is quantised to int8 in groups of 32 (scale: largest magnitude / 127,
    rounded to nearest even). For Q4_K, Q5_K and Q6_K, scales are multiples of a common one of 256
    inputs on `avx512`, and on `amx` there is one for as many, and what that leaves is rounded once
    more where it is too coarse (csrc/activations.h). With BF16 matrices, x is rounded to bfloat16.
    With `two_parts`, what the rounding leaves is rounded likewise, and multiplied besides. A row's
    bits depend on that row alone. Raises ValueError for x of another shape.
    """
    x = np.ascontiguousarray(x, dtype=np.float32)
    if x.ndim != 2 or x.shape[1] != matrix.struct.inputs:
        raise ValueError(f"x has shape {x.shape}; (rows, {matrix.struct.inputs}) is needed")
    _check_threads(threads)
    rows = x.shape[0]
    out = np.empty((rows, matrix.struct.outputs), dtype=np.float32)
    if rows:
        library, struct = load(), ctypes.byref(matrix.struct)
        scratch = scratch or Scratch()  # Referenced by a name, so that it outlives the call.
        parts = 1 + two_parts
        work = scratch.at_least(library.pk_product_bytes(struct, rows, parts))
        library.pk_product(struct, x.ctypes.data, rows, parts, out.ctypes.data, threads, work)
    return out
