"""Which dtype a model is computed in."""

from __future__ import annotations

import torch

from penstock.errors import StartupError
from penstock.model_config import WeightFiles
from penstock_worker.cpu import multiplies_bfloat16

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def compute_dtype(requested: str, weights: WeightFiles) -> torch.dtype:
    """The dtype of weights, activations and KV cache.

    requested: float32, bfloat16, or auto.  auto keeps float32 and bfloat16 checkpoints as they
    are; float16 becomes float32, which holds its every value; a quantised GGUF file is computed in
    bfloat16 where the processor multiplies that natively (half the memory, twice the speed), else
    in float32.
    """
    if requested in DTYPES:
        return DTYPES[requested]
    if requested != "auto":
        raise StartupError(f"dtype is {requested!r}; allowed are auto, {', '.join(DTYPES)}")
    if weights.dtype in DTYPES:
        return DTYPES[weights.dtype]
    if weights.dtype == "float16":
        return torch.float32
    return torch.bfloat16 if multiplies_bfloat16() else torch.float32
