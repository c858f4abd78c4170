"""Which dtype a model is computed in, and its KV cache stored in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from penstock.errors import StartupError
from penstock.model.prepared_model import WeightFiles
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.fp8 import FP8_GROUP
from penstock_worker.quantisation.registry import FORMATS


@dataclass(frozen=True)
class DeviceDtypes:
    """What a kind of device computes in, by the names that settings have for it."""

    dtypes: Mapping[str, torch.dtype]
    """The dtypes of weights and activations."""
    caches: Mapping[str, torch.dtype]
    """The dtypes of keys and values."""
    of_gguf: Mapping[str, torch.dtype] = field(default_factory=dict)
    """What auto makes of a GGUF file of these types, where that is another dtype."""
    unpacks_to_plain: bool = False
    """Whether auto unpacks a quantised checkpoint to the dtype of its other tensors."""

    def of_file(self, weights: WeightFiles) -> torch.dtype | None:
        """What auto computes a checkpoint in; None: it has a type that nothing is computed in."""
        if weights.format == "gguf" and weights.dtype in self.of_gguf:
            return self.of_gguf[weights.dtype]
        if weights.quantised is not None and self.unpacks_to_plain:
            return self.dtypes.get(weights.quantised.plain_dtype)
        return self.dtypes.get(weights.dtype)


_HOST_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

HOST = DeviceDtypes(_HOST_DTYPES, {**_HOST_DTYPES, "int8": torch.int8})
"""What a CPU computes in."""

_CUDA_DTYPES = {**_HOST_DTYPES, "float16": torch.float16}

CUDA = DeviceDtypes(
    _CUDA_DTYPES,
    {**_CUDA_DTYPES, "fp8": torch.float8_e4m3fn},
    {"float16": torch.bfloat16},
    unpacks_to_plain=True,
)
"""The Triton kernels'.  Who publishes safetensors in float16 has computed in it.  A GGUF file in
float16 is a conversion, mostly of bfloat16: its activations may not fit in float16, and its weights
become what they were, but for those below 2**-17.  All GPUs that Triton supports (compute
capability 8.0 and higher) have bfloat16 products."""


def compute_dtype(requested: str, weights: WeightFiles, device: DeviceDtypes = HOST) -> torch.dtype:
    """The dtype of weights, activations and, unless it has its own, the KV cache.

    requested: a key of device.dtypes, or auto.  auto keeps a checkpoint of one of these types as it
    is (but for device.of_gguf); any other (GGUF's quantised ones; float16 on a CPU) becomes
    float32, which holds its every value.  bfloat16 would be twice as fast, and doesn't hold them: a
    level times a float16 scale needs more bits.  float16 nearly does, but its range ends at 65,504,
    and the default model's activations reach 22,600: another's may well not fit.  Users who know
    their model's range can ask for it.
    """
    if requested in device.dtypes:
        return device.dtypes[requested]
    if requested != "auto":
        raise StartupError(f"dtype is {requested!r}; allowed are auto, {', '.join(device.dtypes)}")
    return device.of_file(weights) or torch.float32


BESIDE_QUANTISED = torch.bfloat16
"""The dtype of activations, the KV cache and floating-point matrices where the CUDA kernels keep a
file's quantised ones. For few rows no quantised weight is rounded then, and their logits are
float32. Measured in plain torch on the default model over 1,400 tokens, against float32 throughout,
with activations and cache
  in bfloat16: perplexity + 0.06 %, 98.6 % of the most likely tokens the same, divergence
  4.7e-4 nats;
  in float32 but for what products take and the cache: - 0.01 %, 99.3 %, 1.1e-4.
The second would have attention multiply without tensor cores, for a loss that is a tenth of what
the tests allow to the CPU's signed bytes.  Weights rounded to bfloat16 where many rows meet them
(600 tokens, activations in float32): - 0.02 %, 99.7 %, 2.6e-5, so that costs less than either."""


def _has_product(scheme: WeightScheme) -> bool:
    """Whether the CUDA kernels multiply with weights of such a scheme, on some GPUs at least; if
    they are FP8 and their activations aren't to be, with those of experts."""
    if scheme.storage == "fp8":
        return scheme.block is None or scheme.block[1] == FP8_GROUP
    return scheme.storage not in ("nf4", "fp4")


def stays_quantised(requested: str, weights: WeightFiles) -> bool:
    """Whether matrices stay as the file has them on a GPU: auto, of a GGUF file most of which is of
    a type that its kernels multiply with, or of such a quantised checkpoint. An explicit dtype
    means that type throughout."""
    if requested != "auto":
        return False
    if weights.quantised is not None:
        return any(map(_has_product, weights.quantised.schemes))
    if weights.format != "gguf":
        return False
    form = FORMATS.get(weights.dtype)
    return form is not None and form.kept is not None


def may_keep(requested: str, weights: WeightFiles, computed: torch.dtype) -> bool:
    """Whether quantised matrices of the file, all of it or a smaller part, can stay as they are.
    computed: the dtype of activations."""
    if weights.quantised is not None:
        return stays_quantised(requested, weights)
    return requested == "auto" and weights.format == "gguf" and computed == BESIDE_QUANTISED


def cache_dtype(requested: str, computed: torch.dtype, device: DeviceDtypes = HOST) -> torch.dtype:
    """The dtype of stored keys and values. requested: a key of device.caches, or auto."""
    if requested == "auto":
        return computed
    if requested not in device.caches:
        raise StartupError(
            f"kv_cache_dtype is {requested!r}; allowed are auto, {', '.join(device.caches)}"
        )
    return device.caches[requested]
