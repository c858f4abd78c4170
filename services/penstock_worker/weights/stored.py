"""A tensor in its memory-mapped file, and how it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from penstock.errors import UnsupportedModel
from penstock.formats.mapping import release
from penstock.process import logs
from penstock_worker.quantisation.checkpoints.matrix import CheckpointMatrix
from penstock_worker.quantisation.interface import StoredFormat
from penstock_worker.quantisation.registry import FORMATS

if TYPE_CHECKING:
    from torch import Tensor

log = logs.get(__name__)

CHUNK_ELEMENTS = 1 << 20
"""Elements decoded at a time, so that temporary memory stays small and mostly in cache."""

_FLOATS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": lambda data: np.array(data.view("<f4"), dtype=np.float32),
    "F16": lambda data: data.view("<f2").astype(np.float32),
    "BF16": lambda data: (data.view("<u2").astype(np.uint32) << 16).view(np.float32),
}
"""What reads plain types' bytes, uint8, by the types' names."""

Place: TypeAlias = "Callable[[Tensor, Tensor], object]"
"""Copies the second tensor (values) to the first (the target). Both have the same shape. The target
is contiguous, and may have another dtype and be on another device."""


def copied(target: Tensor, values: Tensor) -> None:
    """Copies to a tensor in this process's memory: a Place."""
    target.copy_(values)


def not_finite(tensor: StoredTensor) -> UnsupportedModel:
    """The error to raise for a quantised tensor with scales that are NaN or infinite."""
    return UnsupportedModel(
        f"tensor {tensor.name} ({tensor.format}) holds scales that aren't finite numbers: the file "
        "is damaged"
    )


def log_growth(grown: Mapping[str, int]) -> None:
    """Says by how many bytes matrices are larger than in the file. grown: by their type."""
    if grown:
        log.warning(
            "levels of quantised matrices become half a byte or a whole one, and take more memory "
            "than in the file",
            types=", ".join(sorted(grown)),
            more=f"{sum(grown.values()) / 1e9:.1f} GB",
        )


@dataclass(frozen=True)
class StoredTensor:
    """A tensor whose bytes are mapped but not read."""

    name: str
    """Its name in the file, for messages."""
    shape: tuple[int, ...]
    format: str
    """A key of FORMATS."""
    data: np.ndarray
    """uint8: the tensor's bytes in the file."""
    rearrange: Callable[[np.ndarray], np.ndarray] | None = None
    """Where the file has rows in another order: maps the file's, whatever they are, [rows, ...], to
    ours."""
    spare: bool = False
    """Whether the model may have no use for it."""
    factors: tuple[float, ...] = ()
    """What the numbers of an NVFP4 tensor are multiplied by: all, or those of each expert."""
    made: Callable[[np.ndarray], np.ndarray] | None = None
    """Makes the bytes that `format` means of `data`, where the file has them in another layout."""

    @property
    def content(self) -> np.ndarray:
        """The tensor's bytes as `format` means them, contiguous uint8. Made anew each time where
        the file has another layout."""
        return self.data if self.made is None else self.made(self.data)

    def row_range(self, rows: range) -> StoredTensor:
        """Returns neighbouring rows of a tensor whose rows aren't rearranged, as a tensor."""
        if self.rearrange is not None or self.made is not None:
            raise ValueError(f"the rows of {self.name} are rearranged; cut them before")
        data = self.data.reshape(self.shape[0], -1)[rows.start : rows.stop].reshape(-1)
        return replace(self, shape=(len(rows), *self.shape[1:]), data=data)

    def own_rows(self, rows: range) -> tuple[StoredTensor, np.ndarray | None]:
        """Returns some rows of a tensor in the file's order, and the index at which each belongs
        among them, [rows] int32; None if the order is the same.

        Raises ValueError for rows that aren't neighbours in the file, in whatever order. Those of
        whole heads are: rows are rearranged within heads.
        """
        part = self if self.rearrange is None else replace(self, rearrange=None)
        if len(rows) < self.shape[0]:
            if self.made is not None:
                part = replace(part, data=self.content, made=None)
            part = part.row_range(rows)
        if self.rearrange is None:
            return part, None
        sources = self.sources()[rows.start : rows.stop] - rows.start
        places = np.empty(len(rows), dtype=np.int32)
        if not np.array_equal(np.sort(sources), np.arange(len(rows))):
            raise ValueError(f"rows {rows} of {self.name} lie all over the file")
        places[sources] = np.arange(len(rows), dtype=np.int32)
        return part, places

    def read_into(self, out: Tensor, place: Place = copied) -> None:
        """Decodes into `out`, a contiguous tensor of the same shape, rounding to its dtype.

        Always copies, because a memory map isn't aligned as the matrix kernels need it. `place`
        copies a decoded chunk to its part of `out`.
        """
        if self.rearrange is None:
            self._decode(out.view(-1), place)
            return
        stored = torch.empty_like(out)
        self._decode(stored.view(-1), place)
        out.copy_(stored[torch.from_numpy(self.sources()).to(stored.device)])

    def read_part_into(self, out: Tensor, part: tuple[range, ...], place: Place = copied) -> None:
        """Does what read_into does, for the part [rows, columns] or [rows] of the tensor. Decodes
        only the blocks that contain the part, a chunk of rows at a time."""
        if all(len(want) == size for want, size in zip(part, self.shape, strict=True)):
            self.read_into(out, place)
        elif len(self.shape) == 1:
            whole = torch.empty(self.shape, dtype=out.dtype)
            self.read_into(whole)
            place(out, whole[part[0].start : part[0].stop])
        elif len(self.shape) > 2:
            self._in_rows().read_part_into(out.flatten(1), self._whole_rows(part), place)
        else:
            rows, columns = part
            self._decode_part(out, rows, columns, place)

    def floats(self) -> np.ndarray | None:
        """Returns the tensor's numbers as a float32 array of its shape, which nothing else holds;
        None for a type or factors that only torch decodes."""
        read = _FLOATS.get(self.format)
        if read is None or self.factors:
            return None
        found = read(self.content).reshape(self.shape)
        self.release()
        return found if self.rearrange is None else found[self.sources()]

    def _in_rows(self) -> StoredTensor:
        """Returns the same numbers with two dimensions: a row has all but the first."""
        return replace(self, shape=(self.shape[0], math.prod(self.shape[1:])))

    def _whole_rows(self, part: tuple[range, ...]) -> tuple[range, range]:
        """Raises UnsupportedModel for a part of another dimension than the first."""
        if any(len(want) < size for want, size in zip(part[1:], self.shape[1:], strict=True)):
            raise UnsupportedModel(
                f"tensor {self.name} has {len(self.shape)} dimensions, of which only the first can "
                "be shared by ranks"
            )
        return part[0], range(math.prod(self.shape[1:]))

    def _decode_part(self, out: Tensor, rows: range, columns: range, place: Place) -> None:
        stored = self._stored_format()
        sources = self.sources()[rows.start : rows.stop]
        held = range(columns.start // stored.elements, -(-columns.stop // stored.elements))
        width, skipped = len(held) * stored.elements, columns.start - held.start * stored.elements
        step = max(1, CHUNK_ELEMENTS // width)
        for start in range(0, len(sources), step):
            blocks = self.blocks_of(sources[start : start + step], held)
            decoded = self._decoded(stored, blocks.flatten(0, 1)).view(-1, width)
            target = out[start : start + len(decoded)]
            place(target, decoded[:, skipped : skipped + len(columns)])
        self.release()

    def release(self) -> None:
        """To be called when the tensor has been read: its part of the file leaves this process's
        memory, but for what was copied."""
        release(self.data)

    def sources(self) -> np.ndarray:
        """Returns [rows] int64: the index in the file of each row."""
        rows = np.arange(self.shape[0])
        if self.rearrange is None:
            return rows
        return self.rearrange(rows)

    def blocks_of(self, sources: np.ndarray, blocks: range) -> Tensor:
        """Returns a copy of some blocks of some rows in the file, [rows, blocks, bytes] uint8."""
        size = self._stored_format().bytes
        by_row = self.content.reshape(self.shape[0], -1, size)
        return torch.from_numpy(by_row[sources, blocks.start : blocks.stop])

    def places(self) -> np.ndarray | None:
        """Returns [rows] int32: the index at which each row of the file belongs; None if the order
        is the same."""
        if self.rearrange is None:
            return None
        sources = self.sources()
        places = np.empty(self.shape[0], dtype=np.int32)
        places[sources] = np.arange(self.shape[0], dtype=np.int32)
        return places

    def _decode(self, flat: Tensor, place: Place) -> None:
        stored = self._stored_format()
        blocks = self.content.reshape(-1, stored.bytes)
        step = max(1, CHUNK_ELEMENTS // stored.elements)
        for start in range(0, blocks.shape[0], step):
            chunk = torch.from_numpy(blocks[start : start + step].copy())
            at = start * stored.elements
            decoded = self._decoded(stored, chunk).view(-1)
            place(flat[at : at + decoded.shape[0]], decoded)
        self.release()

    def _decoded(self, stored: StoredFormat, blocks: Tensor) -> Tensor:
        """Decodes [blocks, bytes]. Raises UnsupportedModel for a quantised type's numbers that
        aren't finite, and for factors of several experts."""
        decoded = stored.decode(blocks)
        if len(self.factors) > 1:
            raise UnsupportedModel(f"tensor {self.name} has {len(self.factors)} scales")
        for factor in self.factors:
            decoded = decoded * factor
        if not stored.plain:
            self.check_finite(decoded)
        return decoded

    def check_finite(self, values: Tensor) -> None:
        """Raises UnsupportedModel if scales or decoded values of a quantised type aren't finite: no
        answer would come of them. Unquantised weights may hold anything."""
        if values.is_floating_point() and not values.isfinite().all():
            raise not_finite(self)

    def require_readable(self) -> None:
        """Raises UnsupportedModel for a type that can't be read."""
        self._stored_format()

    @property
    def plain(self) -> bool:
        """Whether it is stored as numbers, not quantised."""
        stored = FORMATS.get(self.format)
        return stored is not None and stored.plain and not isinstance(self, CheckpointTensor)

    @property
    def adds_nothing(self) -> bool:
        """Whether it is a bias or a matrix of zeros, so that a model which has no place for it
        computes the same. Reads up to the first number that isn't zero."""
        if not self.plain or (len(self.shape) < 2 and not self.name.endswith("bias")):
            return False
        stored, content = self._stored_format(), self.content
        step = CHUNK_ELEMENTS * stored.bytes
        return not any(
            stored.decode(torch.from_numpy(chunk.reshape(-1, stored.bytes).copy())).any()
            for chunk in (content[at : at + step] for at in range(0, len(content), step))
        )

    def _stored_format(self) -> StoredFormat:
        stored = FORMATS.get(self.format)
        if stored is None:
            raise UnsupportedModel(
                f"tensor {self.name} is stored as {self.format}; {', '.join(FORMATS)} can be read"
            )
        return stored


# A matrix of a quantised checkpoint among a model's tensors.


@dataclass(frozen=True)
class CheckpointTensor(StoredTensor):
    """A tensor of a quantised checkpoint, read as any other tensor is, and decoded a chunk of rows
    at a time."""

    matrix: CheckpointMatrix | None = None
    """The matrix, never None: the field needs a default because the base's fields have some."""

    def __post_init__(self) -> None:
        matrix = self.quantised
        if self.shape != (matrix.outputs, matrix.inputs):
            raise ValueError(f"{self.name} has another shape than its matrix; use row_range")

    @staticmethod
    def of(matrix: CheckpointMatrix, name: str) -> CheckpointTensor:
        """`name`: as the checkpoint would have it unquantised."""
        shape = (matrix.outputs, matrix.inputs)
        return CheckpointTensor(
            name, shape, matrix.levels_are, np.empty(0, dtype=np.uint8), matrix=matrix
        )

    def require_readable(self) -> None:
        """The checkpoint's format was looked at when its tensors were gathered."""

    @property
    def quantised(self) -> CheckpointMatrix:
        if self.matrix is None:
            raise TypeError(f"{self.name} was made without its matrix")
        return self.matrix

    def floats(self) -> None:
        """torch decodes it."""

    def row_range(self, rows: range) -> CheckpointTensor:
        if self.rearrange is not None:
            raise ValueError(f"the rows of {self.name} are rearranged; cut them before")
        return CheckpointTensor.of(self.quantised.row_range(rows), self.name)

    def _decode(self, flat: Tensor, place: Place) -> None:
        rows, columns = (range(size) for size in self.shape)
        self._decode_runs(flat.view(self.shape), np.arange(len(rows)), columns, place)

    def _decode_part(self, out: Tensor, rows: range, columns: range, place: Place) -> None:
        self._decode_runs(out, self.sources()[rows.start : rows.stop], columns, place)

    def _decode_runs(self, out: Tensor, sources: np.ndarray, columns: range, place: Place) -> None:
        """Decodes rows of the file, neighbours together."""
        begins = np.flatnonzero(np.diff(sources, prepend=sources[:1] - 2) != 1)
        for begin, end in zip(begins, [*begins[1:], len(sources)], strict=True):
            first = int(sources[begin])
            for rows in chunks(range(first, first + int(end - begin)), len(columns)):
                at = int(begin) + rows.start - first
                values = self.quantised.values(rows, columns)
                place(out[at : at + len(rows)], values.contiguous())


@dataclass(frozen=True)
class BlockMatrix(CheckpointMatrix):
    """A matrix of a quantised GGUF type, of whose rows or columns something else is made: it is
    decoded when it is read."""

    stored: StoredTensor

    @staticmethod
    def of(stored: StoredTensor) -> BlockMatrix:
        outputs, inputs = stored.shape
        return BlockMatrix(stored.name, outputs, inputs, f"GGUF's {stored.format}", stored)

    def row_range(self, rows: range) -> BlockMatrix:
        return BlockMatrix.of(self.stored.row_range(rows))

    def values(self, rows: range, columns: range) -> Tensor:
        found = torch.empty(len(rows), len(columns))
        self.stored.read_part_into(found, (rows, columns))
        return found


def as_checkpoint(stored: StoredTensor) -> StoredTensor:
    """Returns a matrix of a quantised GGUF type as one of a quantised checkpoint; anything else as
    it is."""
    plain = isinstance(stored, CheckpointTensor) or stored.plain or len(stored.shape) != 2
    return stored if plain else CheckpointTensor.of(BlockMatrix.of(stored), stored.name)


def chunks(rows: range, columns: int) -> Iterator[range]:
    """Splits rows into chunks whose elements take little memory."""
    step = max(1, CHUNK_ELEMENTS // max(1, columns))
    for start in range(rows.start, rows.stop, step):
        yield range(start, min(start + step, rows.stop))
