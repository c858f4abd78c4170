"""Opens a model's files as Weights."""

from __future__ import annotations

import torch

from penstock.errors import StartupError
from penstock.families.finding import served_family
from penstock.model.config import ModelConfig, WeightFiles
from penstock_worker.weights.dummy import DummyWeights
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.gguf import gguf_tensors
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.quantised import QuantisedWeights
from penstock_worker.weights.repacking import LAYOUTS
from penstock_worker.weights.safetensors import safetensors_tensors
from penstock_worker.weights.weights import Weights


def open_weights(
    files: WeightFiles,
    config: ModelConfig,
    dtype: torch.dtype,
    *,
    device: torch.device = CPU,
    load_format: str = "auto",
    keep_quantised: bool = False,
) -> Weights:
    """Maps the files and checks their headers. No tensor data is read yet.

    `load_format` is "auto", or "dummy", which needs no files. With `keep_quantised`, matrices of
    quantised types are not unpacked.
    """
    if load_format == "dummy":
        return DummyWeights(dtype, device)
    if load_format != "auto":
        raise StartupError(f"load_format is {load_format!r}; allowed are auto, dummy")
    if files.format == "gguf":
        tensors = gguf_tensors(files.files, config)
        quantised = any(tensor.format in LAYOUTS for tensor in tensors.values())
        kind = QuantisedWeights if keep_quantised and quantised else Weights
        return kind(tensors, dtype, device)
    found = safetensors_tensors(files.files, quantised=files.quantised)
    tensors = by_our_names(found, served_family(config.architecture).hub_names, config)
    kept = keep_quantised and files.quantised is not None
    return (QuantisedWeights if kept else Weights)(tensors, dtype, device)
