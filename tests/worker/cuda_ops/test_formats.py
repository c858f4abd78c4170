"""What settings mean on CUDA, and what a CPU refuses."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from penstock.config.scheduler_settings import SchedulerSettings
from penstock.errors import StartupError
from penstock.model.prepared_model import WeightFiles
from penstock_worker.dtype import CUDA, cache_dtype, compute_dtype
from penstock_worker.quantisation.gguf import product


@pytest.mark.parametrize(
    ("requested", "form", "stored", "expected"),
    [
        ("auto", "gguf", "float32", torch.float32),
        ("auto", "gguf", "bfloat16", torch.bfloat16),
        ("auto", "gguf", "float16", torch.bfloat16),
        ("auto", "safetensors", "float16", torch.float16),
        ("auto", "gguf", "Q4_1", torch.float32),
        ("float16", "gguf", "float32", torch.float16),
        ("float16", "gguf", "float16", torch.float16),
        ("float32", "gguf", "float16", torch.float32),
        ("float32", "gguf", "Q8_0", torch.float32),
    ],
)
def test_dtype(
    requested: str, form: Literal["gguf", "safetensors"], stored: str, expected: torch.dtype
) -> None:
    files = WeightFiles(format=form, files=(), dtype=stored)
    assert compute_dtype(requested, files, CUDA) == expected


def test_weights_that_were_bfloat16_are_again() -> None:
    """What auto relies on: such a file's float16 loses no bit on its way back."""
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
    usual = every[(every.abs() >= 2**-17) & (every.abs() < 2**16)]
    assert len(usual) == 2 * 33 * 128
    assert torch.equal(usual.to(torch.float16).to(torch.bfloat16), usual)


def test_cache() -> None:
    assert cache_dtype("auto", torch.float16, CUDA) == torch.float16
    assert cache_dtype("fp8", torch.bfloat16, CUDA) == torch.float8_e4m3fn
    assert cache_dtype("float16", torch.bfloat16, CUDA) == torch.float16


def test_dtypes_that_a_format_cant_have_are_refused() -> None:
    files = WeightFiles(format="gguf", files=(), dtype="float16")
    with pytest.raises(StartupError, match="'int8'; allowed are auto, float32, bfloat16, float16,"):
        cache_dtype("int8", torch.float16, CUDA)
    with pytest.raises(StartupError, match="'float16'; allowed are auto, float32, bfloat16"):
        compute_dtype("float16", files)
    for requested in ("fp8", "float16"):
        with pytest.raises(StartupError, match="allowed are auto, float32, bfloat16, int8"):
            cache_dtype(requested, torch.float32)


def test_a_decode_of_all_slots_unpacks_nothing() -> None:
    """It holds by default, where no more sequences than these run at once."""
    assert SchedulerSettings().max_num_seqs < product.UNPACKED_ROWS
