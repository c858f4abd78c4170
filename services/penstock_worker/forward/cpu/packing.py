"""Packs single tensors of a checkpoint for the CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from penstock_kernels.cpu.matrix import MatrixKind, NotFiniteError, PackedMatrix, pack
from penstock_kernels.cpu.memory import Arena
from penstock_worker.forward.cpu.checkpoints import CheckpointPacking
from penstock_worker.quantisation.registry import FORMATS, QUANTIZATIONS
from penstock_worker.weights.checkpoint_tensor import CheckpointTensor
from penstock_worker.weights.stored import not_finite
from penstock_worker.weights.weights import Weights

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

    def report(self) -> None:
        """Says in the log what could not be kept as the checkpoint has it."""
        self._checkpoints.report()

    def vector(self, name: str, size: int) -> np.ndarray:
        return self.weights.take(name, (size,), torch.float32).numpy()

    def tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor as float32."""
        return self.weights.take(name, shape, torch.float32).numpy()

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
        if kind is None and isinstance(whole, CheckpointTensor):
            return self._checkpoints.pack(whole.quantised, added, places, rows)
        shape = (len(rows), inputs)
        form = FORMATS.get(stored.format)
        plain = form is not None and form.plain
        if kind in QUANTISED and not plain:
            kind = None
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
