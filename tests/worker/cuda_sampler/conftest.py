"""Without CUDA the kernels run in Triton's interpreter, on CPU tensors."""

from __future__ import annotations

import pytest
import torch

from tests.interpreted_triton import DEVICE


@pytest.fixture(scope="session")
def device() -> torch.device:
    return DEVICE
