"""In which types the CPU kernels compute a model, by its settings and its files."""

from __future__ import annotations

from penstock.errors import StartupError
from penstock.formats.float_types import FLOAT_DTYPES
from penstock.model.config import ModelConfig
from penstock.model.mechanisms import COMPRESSED, mechanisms
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.decoder import CACHE_KINDS
from penstock_kernels.cpu.matrix import MatrixKind
from penstock_worker.forward.cpu.packing import KINDS, ON_LOAD

_FLOATS = tuple(FLOAT_DTYPES.values())
"""Checkpoint dtypes that can be quantised on load."""


def dtype_of(setup: Setup, stored: str) -> str:
    """Returns float32, bfloat16, int8, or the name of a GGUF quantisation, which means: as the file
    has it."""
    if setup.quantization in ON_LOAD:
        _check_quantisable(setup.quantization, setup.dtype, stored)
        return setup.quantization
    if setup.quantization != "none":
        raise StartupError(
            f"quantization is {setup.quantization!r}; allowed are none, {', '.join(ON_LOAD)}"
        )
    if setup.dtype not in ("auto", "float32", "bfloat16"):
        raise StartupError(
            f"dtype is {setup.dtype!r}; on a CPU auto, float32, bfloat16 are allowed"
        )
    if setup.dtype != "auto":
        return setup.dtype
    return "float32" if stored == "float16" else stored


def kind_of(dtype: str) -> MatrixKind | None:
    """Returns the kind that all matrices are packed as; None means each as the file has it."""
    return (KINDS | ON_LOAD).get(dtype)


def _check_quantisable(quantization: str, requested: str, stored: str) -> None:
    if stored not in _FLOATS:
        raise StartupError(
            f"quantization is {quantization}, but the checkpoint's weights are {stored} already; "
            f"allowed is none, or a checkpoint of {', '.join(_FLOATS)}"
        )
    if requested != "auto":
        raise StartupError(
            f"quantization is {quantization}, which leaves no weights to compute in dtype "
            f"{requested}; allowed is dtype auto (kv_cache_dtype has the cache's type)"
        )


def numerics_of(setup: Setup, dtype: str) -> str:
    """Returns what a fingerprint says of how matrices are multiplied. dtype: dtype_of's."""
    return f"{dtype} in two parts" if in_two_parts(setup, dtype) else dtype


def in_two_parts(setup: Setup, dtype: str) -> bool:
    """Whether inputs of products have twice as many bits (see Decoder). dtype: dtype_of's; in
    float32 they have all of them."""
    return setup.matmul_precision == "high" and dtype != "float32"


def cache_of(requested: str, dtype: str) -> str:
    """Returns the KV cache's dtype, a key of CACHE_KINDS."""
    if requested == "auto":
        return "float32" if dtype == "float32" else "bfloat16"
    if requested not in CACHE_KINDS:
        raise StartupError(
            f"kv_cache_dtype is {requested!r}; allowed are auto, {', '.join(CACHE_KINDS)}"
        )
    return requested


def check_cache(cache: str, config: ModelConfig) -> None:
    """cache: cache_of's. Raises StartupError for one in which a model's keys can't be stored."""
    if cache == "int8" and COMPRESSED in mechanisms(config):
        raise StartupError(f"kv_cache_dtype is int8, which is not served for {COMPRESSED}; auto is")
