"""Random weights without any file, alike in every process: for models that are compared with
themselves."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch

from penstock_worker.weights.names import ROPE_FACTORS
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

CPU = torch.device("cpu")


class RandomWeights(Weights):
    """Has every tensor that is asked for, in whatever shape. Norms and biases are random, too."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: torch.device = CPU) -> None:
        super().__init__({}, dtype, device)

    def take_table(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Numbers of experts, of 8 of them, as all models here have that need such a table."""
        random = np.random.default_rng(zlib.crc32(name.encode()))
        rows = [random.permutation(8)[: shape[1]] for _ in range(shape[0])]
        return torch.from_numpy(np.stack(rows))

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        random = np.random.default_rng(zlib.crc32(name.encode()))
        values = random.standard_normal(shape, dtype=np.float32)
        if name == ROPE_FACTORS or (len(shape) == 1 and name.endswith(".weight")):
            values = 1.0 + 0.3 * values
        elif len(shape) < 2:
            values *= 0.3
        else:
            values *= shape[-1] ** -0.5
        data = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint8)
        return StoredTensor(name, shape, "F32", data)
