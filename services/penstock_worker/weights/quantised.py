"""Weights whose quantised matrices stay as they are in the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from penstock.process import logs
from penstock_worker.quantisation.interface import KeptMatrix
from penstock_worker.weights.checkpoint_tensor import CheckpointTensor
from penstock_worker.weights.keeping_fp8 import BY_BLOCK, BY_ROW, fp8_kind, kept_fp8
from penstock_worker.weights.matrix import Matrix, Stacked
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.repacking import LAYOUTS, fits, repacked
from penstock_worker.weights.repacking_checkpoints import kept_as, repacked_levels
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

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
        self, tensors: dict[str, StoredTensor], dtype: torch.dtype, device: torch.device = CPU
    ) -> None:
        super().__init__(tensors, dtype, device)
        self._rounded: list[StoredTensor] = []
        """Matrices that no product takes as they are."""

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
            return repacked(parts, self.device, self._place)
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
        if self._rounded:
            log.warning(
                "quantised matrices are unpacked, and rounded to the dtype of activations: the "
                "kernels multiply with whole numbers whose scale is that of 32 neighbouring inputs "
                "or more, and with FP8 whose scale is that of an output or of 128 of its inputs, "
                "if activations may be FP8 too or the matrices are those of experts",
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
