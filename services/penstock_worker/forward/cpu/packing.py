"""Packs single tensors of a checkpoint for the CPU kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from penstock.errors import UnsupportedModel
from penstock.process import logs
from penstock_kernels.cpu.matrix import (
    LEVELS_BLOCK,
    MatrixKind,
    NotFiniteError,
    PackedMatrix,
    pack,
    pack_blocks,
    pack_floats,
    pack_levels,
)
from penstock_kernels.cpu.memory import Arena
from penstock_worker.quantisation.checkpoints.matrix import (
    CheckpointMatrix,
    LevelMatrix,
    ScaledInputs,
)
from penstock_worker.quantisation.checkpoints.mxfp4 import E2M1Matrix
from penstock_worker.quantisation.interface import GroupedForm, StoredFormat
from penstock_worker.quantisation.registry import FORMATS, QUANTIZATIONS
from penstock_worker.weights.stored import (
    CheckpointTensor,
    StoredTensor,
    chunks,
    log_growth,
    not_finite,
)
from penstock_worker.weights.weights import Weights

log = logs.get(__name__)

_GROUP = 32
"""Inputs that share a scale in the kernels' kinds."""
KINDS = {"float32": MatrixKind.F32, "bfloat16": MatrixKind.BF16}
"""Matrix kind by the dtype in which all matrices are computed."""
ON_LOAD = {name: each.cpu for name, each in QUANTIZATIONS.items() if each.cpu is not None}
"""Matrix kind by the setting `quantization`: what unquantised matrices become on load."""
QUANTISED = frozenset(ON_LOAD.values())


@dataclass
class CPUPacking:
    """Takes tensors out of a checkpoint, each in the kernels' layout."""

    weights: Weights
    threads: int
    arena: Arena = field(default_factory=Arena)

    def __post_init__(self) -> None:
        self._checkpoints = CheckpointPacking(self.threads, self.arena)
        self._grown: Counter[str] = Counter()
        """Bytes by which matrices are larger than in the file, by their type."""

    def report(self) -> None:
        """Says in the log what could not be kept as the checkpoint has it."""
        self._checkpoints.report()
        log_growth(self._grown)

    def vector(self, name: str, size: int) -> np.ndarray:
        return self.weights.array(name, (size,))

    def tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor as float32."""
        return self.weights.array(name, shape)

    def matrix(
        self,
        name: str,
        outputs: int,
        inputs: int,
        *,
        kind: MatrixKind | None,
        bias: bool = False,
        rows: range | None = None,
    ) -> PackedMatrix:
        """`rows`: which of the outputs are packed; None: all."""
        rows = range(outputs) if rows is None else rows
        added = self.vector(f"{name}.bias", outputs)[rows.start : rows.stop] if bias else None
        whole = self.weights.stored(f"{name}.weight", (outputs, inputs))
        stored, places = whole.own_rows(rows)
        shape = (len(rows), inputs)
        form = FORMATS.get(stored.format)
        if form is not None and form.grouped is not None and (kind is None or kind in QUANTISED):
            return self._pack_groups(stored, form, shape, places, added)
        plain = form is not None and form.plain
        if kind in QUANTISED and not plain:
            kind = None
        if kind is None and isinstance(whole, CheckpointTensor):
            return self._checkpoints.pack(whole.quantised, added, places, rows)
        if stored.factors:
            raise UnsupportedModel(
                f"tensor {stored.name} has factors beside it, which are lost here"
            )
        if plain or (kind is None and form is not None and form.packed):
            try:
                packed = pack(
                    stored.format,
                    stored.content,
                    shape,
                    kind=kind,
                    order=places,
                    bias=added,
                    threads=self.threads,
                    arena=self.arena,
                )
            except NotFiniteError:
                raise not_finite(stored) from None
            stored.release()
            return packed
        # Another dtype was asked for, or the kernels don't know this format: decode to float32.
        decoded = torch.empty(shape, dtype=torch.float32)
        whole.read_part_into(decoded, (rows, range(inputs)))
        return pack(
            "F32",
            decoded.numpy().view(np.uint8),
            shape,
            kind=MatrixKind.BF16 if kind is None else kind,
            bias=added,
            threads=self.threads,
            arena=self.arena,
        )

    def _pack_groups(
        self,
        stored: StoredTensor,
        form: StoredFormat,
        shape: tuple[int, int],
        order: np.ndarray | None,
        bias: np.ndarray | None,
    ) -> PackedMatrix:
        """Packs a type that the library can't unpack."""
        grouped = _grouped(form)
        try:
            packed = pack_levels(
                _grouped_blocks(stored, form, grouped),
                shape,
                kind=grouped.kind,
                order=order,
                bias=bias,
                threads=self.threads,
                arena=self.arena,
            )
        except NotFiniteError:
            raise not_finite(stored) from None
        self._grown[stored.format] += packed.size - stored.content.nbytes
        stored.release()
        return packed


def _grouped(form: StoredFormat) -> GroupedForm:
    if form.grouped is None:
        raise TypeError(f"{form.name} has no groups")
    return form.grouped


def _grouped_blocks(
    stored: StoredTensor, form: StoredFormat, grouped: GroupedForm
) -> Iterator[np.ndarray]:
    """Yields chunks of rows as LEVELS_BLOCK, each [rows, blocks]."""
    outputs, inputs = stored.shape
    blocks = range(inputs // form.elements)
    for rows in chunks(range(outputs), inputs):
        of_rows = stored.blocks_of(np.arange(rows.start, rows.stop), blocks)
        levels, scales, minima = grouped.read(of_rows.flatten(0, 1))
        if minima is None:
            levels = levels.view(torch.uint8) ^ 128
        found = np.zeros((len(rows), inputs // _GROUP), dtype=LEVELS_BLOCK)
        by_block = (*found.shape, -1)
        found["levels"] = levels.reshape(by_block).numpy()
        found["scales"] = scales.reshape(by_block).numpy()
        if minima is not None:
            found["minima"] = minima.reshape(by_block).numpy()
        yield found


# Packs the matrices of quantised checkpoints for the CPU kernels.
#
# Levels with a scale per group of inputs become a packed kind, without being rounded again, if each
# 32 neighbouring inputs share a scale, or they are MXFP4 or NVFP4. Others are unpacked, and so are
# FP8 and NF4, whose numbers are no whole ones: to bfloat16 if it can hold every weight of the
# matrix, else to float32.


@dataclass
class CheckpointPacking:
    """Packs matrices, and counts what is done with them."""

    threads: int
    arena: Arena
    unpacked: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Matrices by (what their levels are, why they are unpacked, to what)."""

    def pack(
        self,
        matrix: CheckpointMatrix,
        bias: np.ndarray | None = None,
        order: np.ndarray | None = None,
        rows: range | None = None,
    ) -> PackedMatrix:
        """`rows`: those that are packed, by default all. `bias` is [rows] float32, `order` the
        index at which each of them is stored. What they become depends on the whole matrix, so
        that it is the same on all ranks. Raises UnsupportedModel for a scale that isn't finite."""
        reason = _obstacle(matrix)
        rows = range(matrix.outputs) if rows is None else rows
        if isinstance(matrix, E2M1Matrix):
            return self._pack_e2m1(matrix, bias, order, rows)
        if reason is None and isinstance(matrix, LevelMatrix):
            return self._pack_levels(matrix, bias, order, rows)
        kind = MatrixKind.BF16 if _fits_bfloat16(matrix) else MatrixKind.F32
        self.unpacked[matrix.levels_are, reason or "", kind.name] += 1
        floats = (values.numpy() for values in _values(matrix, rows))
        shape = (len(rows), matrix.inputs)
        return pack_floats(
            floats,
            shape,
            kind=kind,
            order=order,
            bias=bias,
            threads=self.threads,
            arena=self.arena,
        )

    def report(self) -> None:
        """Logs what was unpacked."""
        for (levels, reason, kind), count in self.unpacked.items():
            log.warning(
                "quantised matrices are unpacked, and take more memory than their file",
                matrices=count,
                type=levels,
                reason=reason,
                to="bfloat16" if kind == MatrixKind.BF16.name else "float32",
            )

    def _pack_levels(
        self,
        matrix: LevelMatrix,
        bias: np.ndarray | None,
        order: np.ndarray | None,
        rows: range,
    ) -> PackedMatrix:
        whole = range(matrix.outputs)
        scales, zeros = matrix.finite_scales(whole), matrix.zeros(whole)
        minima = -(zeros * scales)
        kind = levels_kind(matrix.bits, scales, zeros, minima)
        shape = (len(rows), matrix.inputs)
        return pack_levels(
            _blocks(matrix, scales, minima, rows),
            shape,
            kind=kind,
            order=order,
            bias=bias,
            threads=self.threads,
            arena=self.arena,
        )

    def _pack_e2m1(
        self,
        matrix: E2M1Matrix,
        bias: np.ndarray | None,
        order: np.ndarray | None,
        rows: range,
    ) -> PackedMatrix:
        matrix.finite_scales(rows)
        return pack_blocks(
            matrix.gguf[0],
            (matrix.blocks(some) for some in chunks(rows, matrix.inputs)),
            (len(rows), matrix.inputs),
            factor=float(matrix.factor),
            order=order,
            bias=bias,
            threads=self.threads,
            arena=self.arena,
        )


def levels_kind(bits: int, scales: np.ndarray, zeros: np.ndarray, minima: np.ndarray) -> MatrixKind:
    """Returns the smallest kind that holds these scales and minima as they are. All are [outputs,
    groups]; scales and minima are float32."""
    if bits == 8 and (zeros == 128).all():
        return MatrixKind.S8H if _fits_float16(scales) else MatrixKind.S8W16
    narrow = _fits_float16(scales) and _fits_float16(minima)
    if bits == 4:
        return MatrixKind.U4H if narrow else MatrixKind.U4W
    return MatrixKind.U8H if narrow else MatrixKind.U8W


def _obstacle(matrix: CheckpointMatrix) -> str | None:
    """Returns why a matrix can't be packed as levels, or None."""
    if isinstance(matrix, ScaledInputs):
        return "its inputs have a factor each (pre_quant_scale)"
    if not isinstance(matrix, LevelMatrix):
        return "its numbers are not integers"
    if matrix.order is not None:
        return "the inputs of a group aren't neighbours (act-order)"
    if matrix.group % _GROUP and matrix.group < matrix.inputs:
        return f"its groups have {matrix.group} inputs, no multiple of {_GROUP}"
    return None


def _fits_float16(values: np.ndarray) -> bool:
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float16).astype(np.float32) == values).all())


def _fits_bfloat16(matrix: CheckpointMatrix) -> bool:
    rows = range(matrix.outputs)
    return all(torch.equal(each.bfloat16().float(), each) for each in _values(matrix, rows))


def _values(matrix: CheckpointMatrix, rows: range) -> Iterator[torch.Tensor]:
    columns = range(matrix.inputs)
    for chunk in chunks(rows, matrix.inputs):
        yield matrix.values(chunk, columns)


def _blocks(
    matrix: LevelMatrix, scales: np.ndarray, minima: np.ndarray, of: range
) -> Iterator[np.ndarray]:
    """Yields chunks of some rows as LEVELS_BLOCK, each [rows, blocks]. `scales` and `minima` are
    those of all rows."""
    count = -(-matrix.inputs // _GROUP)
    group = np.arange(count) * _GROUP // matrix.group
    for rows in chunks(of, matrix.inputs):
        here = slice(rows.start, rows.stop)
        levels = np.zeros((len(rows), count * _GROUP), dtype=np.uint8)
        levels[:, : matrix.inputs] = matrix.levels(rows, range(matrix.inputs))
        blocks = np.empty((len(rows), count), dtype=LEVELS_BLOCK)
        blocks["scales"] = scales[here][:, group, None]
        blocks["minima"] = minima[here][:, group, None]
        blocks["levels"] = levels.reshape(len(rows), count, _GROUP)
        yield blocks
