"""Random weights in a model's shapes, to measure speed without a checkpoint."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from penstock_worker.weights.names import ROPE_FACTORS
from penstock_worker.weights.stored import Place
from penstock_worker.weights.weights import Readable, Weights


class DummyTensor:
    """A tensor drawn from its name on the device that it is asked for on: the same in every run.

    Matrices keep the size of what they multiply (normal, of variance 1 / inputs), biases are small,
    norms are 1: activations and logits stay in the range of a trained model's.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def read_part_into(
        self, out: Tensor, part: tuple[range, ...], place: Place = Tensor.copy_
    ) -> None:
        """Fills `out`. The part and the place don't matter."""
        if self._name == ROPE_FACTORS or (out.dim() == 1 and self._name.endswith(".weight")):
            out.fill_(1.0)
            return
        digest = hashlib.sha256(self._name.encode()).digest()
        generator = torch.Generator(out.device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        deviation = out.shape[-1] ** -0.5 if out.dim() == 2 else 0.01
        out.normal_(0.0, deviation, generator=generator)


class DummyWeights(Weights):
    """Has every tensor that is asked for, in the shape that it is asked for."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__({}, dtype, device)

    def source(self, name: str, shape: tuple[int, ...]) -> Readable:
        return DummyTensor(name)
