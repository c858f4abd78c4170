"""Which dtype a model is computed in on a GPU, and its KV cache stored in."""

from __future__ import annotations

import torch

from penstock.errors import StartupError
from penstock.model_config import WeightFiles

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
CACHE_DTYPES = {**DTYPES, "fp8": torch.float8_e4m3fn}


def device_dtype(requested: str, weights: WeightFiles) -> torch.dtype:
    """requested: a key of DTYPES, or auto.  auto keeps a float checkpoint's own; GGUF's quantised
    types become float16, which holds a level times its scale better than bfloat16 does."""
    if requested != "auto" and requested not in DTYPES:
        raise StartupError(f"dtype is {requested!r}; allowed are auto, {', '.join(DTYPES)}")
    return DTYPES.get(weights.dtype if requested == "auto" else requested, torch.float16)


def device_cache_dtype(requested: str, computed: torch.dtype) -> torch.dtype:
    """requested: a key of CACHE_DTYPES, or auto, which is `computed`."""
    if requested == "auto":
        return computed
    if requested not in CACHE_DTYPES:
        raise StartupError(
            f"kv_cache_dtype is {requested!r}; on CUDA auto, {', '.join(CACHE_DTYPES)} are allowed"
        )
    return CACHE_DTYPES[requested]
