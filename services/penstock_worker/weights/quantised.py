"""Weights whose quantised matrices stay as they are in the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.process import logs
from penstock_kernels.triton.linear.gguf_weights import GROUP, Layout, empty
from penstock_worker.quantisation.checkpoints.fp8 import FP8Matrix
from penstock_worker.quantisation.checkpoints.matrix import LevelMatrix
from penstock_worker.quantisation.checkpoints.mxfp4 import E2M1Matrix
from penstock_worker.quantisation.fp8 import FP8, FP8_GROUP, FP8Blocks, FP8Rows
from penstock_worker.quantisation.gguf.matrix import GGUFMatrix
from penstock_worker.quantisation.interface import KeptMatrix
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.repacking import LAYOUTS, fits, repacked
from penstock_worker.weights.stored import (
    CheckpointTensor,
    Place,
    StoredTensor,
    chunks,
    log_growth,
)
from penstock_worker.weights.weights import Matrix, Stacked, Weights

if TYPE_CHECKING:
    from torch import Tensor

log = logs.get(__name__)

_Part = tuple[StoredTensor, tuple[range, ...]]

_FLOATS = "floats"
"""The kind of matrices that are kept in the dtype of the computation."""
_UNPACKED = "unpacked"
"""The kind of matrices that are kept in float32, which can hold every value of a quantised type."""


class QuantisedWeights(Weights):
    """Weights for the products of quantised matrices.

    `dtype` is that of activations, and of matrices that are floating-point in the file, because a
    product needs both in one dtype. Quantised matrices stay as they are in the file, and vectors
    (norms, biases) are float32.
    """

    def __init__(
        self,
        tensors: dict[str, StoredTensor],
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(tensors, dtype, device)
        self._rounded: list[StoredTensor] = []
        """Matrices that no product takes as they are."""
        self._grown: Counter[str] = Counter()
        """Bytes by which matrices are larger than in the file, by their type."""

    def take_stacked(
        self, parts: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype | None = None
    ) -> Tensor:
        if dtype is None and len(parts[0][1]) == 1:
            dtype = torch.float32
        return super().take_stacked(parts, dtype)

    def take_matrix(self, parts: Sequence[tuple[str, Sequence[int]]]) -> Matrix:
        """Takes what Weights.take_matrix does: consecutive tensors of one quantised type become one
        KeptMatrix, consecutive floating-point ones one tensor. If there are several such pieces,
        the result is Stacked."""
        return self._taken_matrix(parts, self._kind)

    def take_experts(self, parts: Sequence[tuple[str, Sequence[int]]]) -> Matrix:
        """Takes what take_matrix does; FP8 weights are also kept if they aren't meant for
        activations in FP8."""
        return self._taken_matrix(parts, partial(self._kind, wide_inputs=True))

    def _taken_matrix(
        self, parts: Sequence[tuple[str, Sequence[int]]], kind_of: Callable[[_Part], str]
    ) -> Matrix:
        found: list[_Part] = [
            (self.stored(name, (shape[0], shape[1])), self._part(name, shape))
            for name, shape in parts
        ]
        groups = [(kind, list(same)) for kind, same in groupby(found, key=kind_of)]
        pieces = [self._piece(kind, same) for kind, same in groups]
        # A single unpacked piece stays Stacked, since its float32 is wider than the computation's
        # dtype.
        if len(pieces) == 1 and groups[0][0] != _UNPACKED:
            return pieces[0]
        return Stacked(tuple(pieces))

    def _piece(self, kind: str, parts: list[_Part]) -> Tensor | KeptMatrix:
        if kind in LAYOUTS:
            kept = repacked(parts, self.device, self._place)
            if FORMATS[kind].grouped is not None:
                block = FORMATS[kind]
                file = kept.outputs * kept.inputs // block.elements * block.bytes
                self._grown[kind] += kept.nbytes - file
            return kept
        of_checkpoint = [
            (stored, part) for stored, part in parts if isinstance(stored, CheckpointTensor)
        ]
        if kind in (BY_ROW, BY_BLOCK):
            return kept_fp8(of_checkpoint, kind, self.device, self._place)
        if of_checkpoint and kind != _FLOATS:
            return repacked_levels(of_checkpoint, kind, self.device, self._place)
        rows, columns = sum(len(part[0]) for _, part in parts), len(parts[0][1][1])
        dtype = torch.float32 if kind == _UNPACKED else self.dtype
        out = torch.empty(rows, columns, dtype=dtype, device=self.device)
        start = 0
        for stored, part in parts:
            end = start + len(part[0])
            stored.read_part_into(out[start:end], part, self._place)
            start = end
        return out

    def _kind(self, part: _Part, *, wide_inputs: bool = False) -> str:
        """Returns how a piece is kept: what _kind_of_gguf returns, or for a checkpoint's matrix
        what fp8_kind or kept_as returns, or _FLOATS."""
        stored, (_, columns) = part
        if not isinstance(stored, CheckpointTensor):
            return _kind_of_gguf(stored, columns)
        kind = fp8_kind(stored, columns, self.device, wide_inputs=wide_inputs)
        kind = kind or kept_as(stored, columns)
        if kind is None:
            self._rounded.append(stored)
        return kind or _FLOATS

    def finish(self) -> None:
        super().finish()
        log_growth(self._grown)
        self._grown.clear()
        if self._rounded:
            log.warning(
                "quantised matrices are unpacked, and rounded to the dtype of activations: the "
                "kernels multiply with whole numbers whose scale is that of 32 neighbouring inputs "
                "or more, with NVFP4, and with FP8 whose scale is that of an output or of 128 of "
                "its inputs, if activations may be FP8 too or the matrices are those of experts",
                matrices=len(self._rounded),
                first=self._rounded[0].name,
                types=", ".join(sorted({stored.format for stored in self._rounded})),
            )
            self._rounded.clear()


def _kind_of_gguf(stored: StoredTensor, columns: range) -> str:
    """Returns a key of LAYOUTS, _FLOATS, or _UNPACKED, if the rank's columns begin or end inside a
    quantisation group."""
    if stored.format not in LAYOUTS:
        return _FLOATS
    if fits(stored, columns):
        return stored.format
    log.warning(
        "a matrix is unpacked: its columns are cut inside a group",
        tensor=stored.name,
        type=stored.format,
        columns=f"{columns.start} to {columns.stop}",
    )
    return _UNPACKED


# Keeps FP8 weights of checkpoints as they are: for products with activations in FP8, and for those
# of experts, which leave activations as they are.

BY_ROW, BY_BLOCK = "fp8 by row", "fp8 by block"
"""Names of FP8 formats with a scale per output, or per 128 inputs of an output."""

_Parts = Sequence[tuple[CheckpointTensor, tuple[range, ...]]]


def fp8_kind(
    tensor: StoredTensor, columns: range, device: torch.device, *, wide_inputs: bool = False
) -> str | None:
    """Returns how these columns of FP8 weights are kept, if the device has their products (Triton's
    interpreter has), and they are meant for activations in FP8; None: they aren't kept.

    `wide_inputs`: what they are meant for doesn't matter, as activations stay unquantised.
    """
    matrix = tensor.quantised if isinstance(tensor, CheckpointTensor) else None
    if not isinstance(matrix, FP8Matrix) or tensor.rearrange:
        return None
    if not (wide_inputs or matrix.float8_inputs):
        return None
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8.capability:
        return None
    if matrix.by_row:
        return BY_ROW
    ends = columns.stop == matrix.inputs or columns.stop % FP8_GROUP == 0
    whole = matrix.block[1] == FP8_GROUP and columns.start % FP8_GROUP == 0 and ends
    return BY_BLOCK if whole else None


def kept_fp8(parts: _Parts, kind: str, device: torch.device, place: Place) -> FP8Rows | FP8Blocks:
    """Stacks parts [rows, columns] of several matrices for which fp8_kind returns `kind`. All have
    the same columns."""
    outputs, inputs = sum(len(rows) for _, (rows, _) in parts), len(parts[0][1][1])
    groups = 1 if kind == BY_ROW else -(-inputs // FP8_GROUP)
    levels = torch.empty(outputs, inputs, dtype=torch.uint8, device=device)
    scales = torch.empty(outputs, groups, dtype=torch.float32, device=device)
    start = 0
    for tensor, (rows, columns) in parts:
        matrix = tensor.quantised
        if not isinstance(matrix, FP8Matrix):
            raise TypeError(f"{tensor.name} isn't FP8")
        for some in chunks(rows, len(columns)):
            end = start + len(some)
            # Copied: these are the mapped file itself.
            place(levels[start:end], torch.from_numpy(matrix.levels(some, columns).copy()))
            if kind == BY_ROW:
                own = matrix.row_scales(some)[:, None]
            else:
                own = matrix.group_scales(some, columns)
            place(scales[start:end], torch.from_numpy(own.copy()))
            start = end
    numbers = levels.view(torch.float8_e4m3fn)
    return FP8Rows(numbers, scales[:, 0]) if kind == BY_ROW else FP8Blocks(numbers, scales)


# Lays levels of quantised checkpoints out for the Triton kernels, without rounding them again.

LevelPart = tuple[CheckpointTensor, tuple[range, ...]]
"""A matrix, and the rows and columns of it that are kept."""


def kept_as(tensor: StoredTensor, columns: range) -> str | None:
    """Returns the name of the layout that keeps these columns of a tensor as they are: `int4`,
    `int8`, or with `wide` after it, which has float32 scales and minima; `e2m1`, and the inputs of
    a group. None if none does."""
    matrix = tensor.quantised if isinstance(tensor, CheckpointTensor) else None
    if not isinstance(matrix, LevelMatrix) or matrix.order is not None:
        return None
    if columns.start % GROUP or columns.stop % GROUP:
        return None
    rows = range(matrix.outputs)
    scales = matrix.finite_scales(rows)
    if isinstance(matrix, E2M1Matrix):
        return f"e2m1 {matrix.group}"
    if matrix.group % GROUP and matrix.group < matrix.inputs:
        return None
    with np.errstate(over="ignore"):
        half = (scales.astype(np.float16).astype(np.float32) == scales).all()
    narrow = half and (matrix.zeros(rows) == matrix.centre).all()
    return f"int{matrix.bits}" if narrow else f"int{matrix.bits} wide"


def repacked_levels(
    parts: Sequence[LevelPart], kept: str, device: torch.device, place: Place
) -> GGUFMatrix:
    """Stacks parts of several matrices as one on `device`. `kept` is what kept_as returns for each
    of them; all have the same columns."""
    columns = parts[0][1][1]
    layout = _layout(kept, len(columns))
    outputs = sum(len(rows) for _, (rows, _) in parts)
    out = GGUFMatrix(**vars(empty(layout, outputs, len(columns), device)))
    if out.units is not None and out.unit_minima is not None:
        out.units.fill_(1)
        out.unit_minima.fill_(1)
    groups = _e2m1_groups if layout.e2m1 else _groups
    start = 0
    for tensor, (rows, held) in parts:
        matrix = tensor.quantised
        if not isinstance(matrix, LevelMatrix):
            raise TypeError(f"{tensor.name} has no levels")
        sources = torch.from_numpy(tensor.sources())
        for some in chunks(rows, len(held)):
            # Where rows are in another order, those of whole heads are.
            wanted = sources[some.start : some.stop]
            read = range(int(wanted.min()), int(wanted.max()) + 1)
            for name, values in groups(matrix, read, held, layout).items():
                _write(out.tensors[name], values[wanted - read.start], start, place)
            start += len(some)
    return out


def _layout(kept: str, inputs: int) -> Layout:
    """The wide layout has no units: one for all inputs is 1, as scales are no whole numbers.
    NVFP4's factor is one."""
    if kept.startswith("e2m1"):
        group = int(kept.split()[1])
        unit = inputs if group < GROUP else 0
        return Layout(4, e2m1=True, group=group, factors="uint8", unit=unit, unit_dtype="float32")
    bits = 4 if kept.startswith("int4") else 8
    if kept.endswith("wide"):
        return Layout(bits, minima=True, factors="float32", unit=inputs)
    return Layout(bits, offset=8 if bits == 4 else 0)


def _groups(matrix: LevelMatrix, rows: range, columns: range, layout: Layout) -> dict[str, Tensor]:
    """Returns tensors of GGUFWeights by name, each [rows, groups of 32 inputs, …]."""
    count = len(columns) // GROUP
    group = (columns.start + np.arange(count) * GROUP) // matrix.group
    # Copied: what isn't unpacked is the mapped file itself.
    levels = torch.from_numpy(np.array(matrix.levels(rows, columns)))
    levels = levels.reshape(len(rows), count, GROUP)
    zeros = matrix.zeros(rows)[:, group]
    if layout.bits == 4:
        # A matrix with 4 bits has its first 16 inputs in the low nibbles.
        levels = levels[..., :16] | levels[..., 16:] << 4
    else:
        levels = (levels ^ 128).view(torch.int8)
        zeros = zeros - 128
    scales = np.ascontiguousarray(matrix.finite_scales(rows)[:, group])
    found = {"levels": levels, "scales": torch.from_numpy(scales)}
    if layout.minima:
        found["minima"] = torch.from_numpy(-(zeros * scales).astype(np.float32))
    return found


def _e2m1_groups(
    matrix: LevelMatrix, rows: range, columns: range, layout: Layout
) -> dict[str, Tensor]:
    """Returns what `_groups` does, of MXFP4 or NVFP4."""
    if not isinstance(matrix, E2M1Matrix):
        raise TypeError(f"{matrix.name} isn't of type e2m1")
    first, last = columns.start // layout.group, columns.stop // layout.group
    scales = np.array(matrix.scale_bytes(rows)[:, first:last])
    found = {
        "levels": torch.from_numpy(matrix.halves(rows, columns, GROUP)),
        "scales": torch.from_numpy(scales),
    }
    if layout.units:
        found["units"] = torch.full((len(rows), 1), float(matrix.factor))
    return found


def _write(target: Tensor, values: Tensor, start: int, place: Place) -> None:
    values = values.to(target.dtype).contiguous()
    staged = values
    if target.device.type != "cpu":
        staged = torch.empty(values.shape, dtype=values.dtype, device=target.device)
        place(staged, values)
    target[:, start : start + len(values)].copy_(staged.transpose(0, 1))
