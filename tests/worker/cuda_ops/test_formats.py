"""What settings mean on CUDA, and what a CPU refuses."""

from __future__ import annotations

import pytest
import torch

from penstock.errors import StartupError
from penstock.model_config import WeightFiles
from penstock_worker.dtype import CUDA, cache_dtype, compute_dtype


@pytest.mark.parametrize(
    ("requested", "stored", "expected"),
    [
        ("auto", "float32", torch.float32),
        ("auto", "bfloat16", torch.bfloat16),
        ("auto", "float16", torch.float16),
        ("auto", "Q4_1", torch.float32),
        ("float16", "float32", torch.float16),
        ("float32", "Q8_0", torch.float32),
    ],
)
def test_dtype(requested: str, stored: str, expected: torch.dtype) -> None:
    files = WeightFiles(format="gguf", files=(), dtype=stored)
    assert compute_dtype(requested, files, CUDA) == expected


def test_cache() -> None:
    assert cache_dtype("auto", torch.float16, CUDA) == torch.float16
    assert cache_dtype("fp8", torch.bfloat16, CUDA) == torch.float8_e4m3fn
    assert cache_dtype("float16", torch.bfloat16, CUDA) == torch.float16


def test_what_is_refused() -> None:
    files = WeightFiles(format="gguf", files=(), dtype="float16")
    with pytest.raises(StartupError, match="'int8'; allowed are auto, float32, bfloat16, float16,"):
        cache_dtype("int8", torch.float16, CUDA)
    with pytest.raises(StartupError, match="'float16'; allowed are auto, float32, bfloat16"):
        compute_dtype("float16", files)
    for requested in ("fp8", "float16"):
        with pytest.raises(StartupError, match="allowed are auto, float32, bfloat16, int8"):
            cache_dtype(requested, torch.float32)
