"""Which dtype a model is computed in, and its KV cache stored in."""

from __future__ import annotations

import torch

from penstock.errors import StartupError
from penstock.model_config import WeightFiles

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CACHE_DTYPES = {**DTYPES, "int8": torch.int8}


def compute_dtype(requested: str, weights: WeightFiles) -> torch.dtype:
    """The dtype of weights, activations and, unless it has its own, the KV cache.

    requested: float32, bfloat16, or auto.  auto keeps float32 and bfloat16 checkpoints as they
    are; float16 and GGUF's quantised types become float32, which holds their every value.
    (bfloat16 would be twice as fast on some processors, and doesn't hold them: a level times a
    float16 scale needs more bits.  The default model, of 4 bits a weight, derails in it.)
    """
    if requested in DTYPES:
        return DTYPES[requested]
    if requested != "auto":
        raise StartupError(f"dtype is {requested!r}; allowed are auto, {', '.join(DTYPES)}")
    if weights.dtype in DTYPES:
        return DTYPES[weights.dtype]
    return torch.float32


def cache_dtype(requested: str, computed: torch.dtype) -> torch.dtype:
    """The dtype of stored keys and values. requested: a key of CACHE_DTYPES, or auto."""
    if requested == "auto":
        return computed
    if requested not in CACHE_DTYPES:
        raise StartupError(
            f"kv_cache_dtype is {requested!r}; allowed are auto, {', '.join(CACHE_DTYPES)}"
        )
    return CACHE_DTYPES[requested]
