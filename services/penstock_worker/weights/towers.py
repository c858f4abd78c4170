"""Opens the part of a model's files with which it sees or hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from penstock.errors import UnsupportedModel
from penstock.model.config import WeightFiles
from penstock_worker.weights.dummy import DummyWeights
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.safetensors import safetensors_tensors
from penstock_worker.weights.weights import Weights
from penstock_worker.weights.zero_biases import add_zero_biases


def open_tower_weights(
    files: WeightFiles,
    dtype: torch.dtype,
    from_hub: Callable[[str], str | None],
    *,
    zero_biases: Sequence[str] = (),
    device: torch.device = CPU,
    load_format: str = "auto",
) -> Weights:
    """Maps a checkpoint's tensors of tower and projector. No tensor data is read yet.

    from_hub: our name for a tensor; None for another half's.  zero_biases: modules of every layer
    that get biases of zeros.  Raises UnsupportedModel for other files than safetensors.
    """
    if load_format == "dummy":
        return DummyWeights(dtype, device)
    if files.format != "safetensors":
        raise UnsupportedModel("vision and audio parts are read only from safetensors files")
    found = safetensors_tensors(files.files, from_hub, files.quantised)
    add_zero_biases(found, zero_biases)
    return Weights(found, dtype, device)
