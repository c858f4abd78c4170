"""Random weights in a model's shapes, for measuring speed without a checkpoint."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from penstock_worker.weights.names import ROPE_FACTORS
from penstock_worker.weights.stored import Place
from penstock_worker.weights.weights import Readable, Weights


class DummyTensor:
    """A tensor of random values, generated on the target's device with a seed made from its name,
    so that it is the same in every run.

    Matrices are normal with variance 1 / inputs, so that they preserve the scale of activations;
    biases are small, and norms are 1. Activations and logits thus stay in the range of a trained
    model's.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def read_part_into(
        self, out: Tensor, part: tuple[range, ...], place: Place = Tensor.copy_
    ) -> None:
        """Fills `out`. The part and the place are ignored."""
        if self._name == ROPE_FACTORS or (out.dim() == 1 and self._name.endswith(".weight")):
            out.fill_(1.0)
            return
        digest = hashlib.sha256(self._name.encode()).digest()
        generator = torch.Generator(out.device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        deviation = out.shape[-1] ** -0.5 if out.dim() == 2 else 0.01
        out.normal_(0.0, deviation, generator=generator)


class DummyWeights(Weights):
    """Has every tensor that is asked for, in whatever shape."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__({}, dtype, device)

    def source(self, name: str, shape: tuple[int, ...]) -> Readable:
        return DummyTensor(name)
