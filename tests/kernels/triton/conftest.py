"""On a machine without CUDA these kernels run in Triton's interpreter, on CPU tensors."""

from __future__ import annotations

import pytest
import torch

from tests.interpreted_triton import DEVICE

if DEVICE.type == "cpu":
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        import tests.kernels.triton.nibble_kernels
        import tests.kernels.triton.rounding_kernels
        import tests.kernels.triton.sampling_kernels  # noqa: F401


@pytest.fixture(scope="session")
def device() -> torch.device:
    return DEVICE


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
