"""Which dtype a model is computed in, and its KV cache stored in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from penstock.errors import StartupError
from penstock.model_config import WeightFiles


@dataclass(frozen=True)
class Formats:
    """What a kind of device can do. dtypes, caches: by the names that settings have for them."""

    dtypes: Mapping[str, torch.dtype]
    caches: Mapping[str, torch.dtype]


_HOST_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

HOST = Formats(_HOST_DTYPES, {**_HOST_DTYPES, "int8": torch.int8})
"""A CPU's."""

_CUDA_DTYPES = {**_HOST_DTYPES, "float16": torch.float16}

CUDA = Formats(_CUDA_DTYPES, {**_CUDA_DTYPES, "fp8": torch.float8_e4m3fn})
"""The Triton kernels'."""


def compute_dtype(requested: str, weights: WeightFiles, formats: Formats = HOST) -> torch.dtype:
    """The dtype of weights, activations and, unless it has its own, the KV cache.

    requested: a key of formats.dtypes, or auto.  auto keeps a checkpoint of one of these types as
    it is; any other (GGUF's quantised ones; float16 on a CPU) becomes float32, which holds its
    every value.  bfloat16 would be twice as fast, and doesn't hold them: a level times a float16
    scale needs more bits.  float16 nearly does, but its range ends at 65,504, and the default
    model's activations reach 22,600: another's may well not fit.  Whoever knows his model asks for
    it.
    """
    if requested in formats.dtypes:
        return formats.dtypes[requested]
    if requested != "auto":
        raise StartupError(f"dtype is {requested!r}; allowed are auto, {', '.join(formats.dtypes)}")
    return formats.dtypes.get(weights.dtype, torch.float32)


BESIDE_QUANTISED = torch.bfloat16
"""Of activations and the KV cache where the CUDA kernels keep a file's quantised matrices. For few
rows no weight is rounded then, and logits are float32.  Measured in plain torch on the default
model over 1,400 tokens, against float32 throughout, with activations and cache
  in bfloat16: perplexity + 0.06 %, 98.6 % of the likeliest tokens the same, divergence 4.7e-4 nats;
  in float32 but for what products take and the cache: - 0.01 %, 99.3 %, 1.1e-4.
The second would have attention multiply without tensor cores, for a loss that is a tenth of what
the tests allow to the CPU's signed bytes.  Weights rounded to bfloat16 where many rows meet them
(600 tokens, activations in float32): - 0.02 %, 99.7 %, 2.6e-5, so that costs less than either."""


def stays_quantised(requested: str, weights: WeightFiles, formats: Formats) -> bool:
    """Whether matrices stay as the file has them where a backend can do that: auto, of a GGUF file
    of a quantised type. An explicit dtype means that type throughout."""
    return requested == "auto" and weights.format == "gguf" and weights.dtype not in formats.dtypes


def cache_dtype(requested: str, computed: torch.dtype, formats: Formats = HOST) -> torch.dtype:
    """The dtype of stored keys and values. requested: a key of formats.caches, or auto."""
    if requested == "auto":
        return computed
    if requested not in formats.caches:
        raise StartupError(
            f"kv_cache_dtype is {requested!r}; allowed are auto, {', '.join(formats.caches)}"
        )
    return formats.caches[requested]
