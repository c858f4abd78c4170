"""On a machine without CUDA these kernels run in Triton's interpreter, on CPU tensors.

Triton reads TRITON_INTERPRET while its decorators run, so the variable is set for the imports only:
processes that other tests start don't inherit it.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if DEVICE.type == "cpu":
    if "triton" in sys.modules and not sys.modules["triton"].knobs.runtime.interpret:
        raise RuntimeError("triton was imported before TRITON_INTERPRET could be set")
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    import penstock_kernels.triton
    import penstock_kernels.triton.kernels

    if before is None:
        del os.environ["TRITON_INTERPRET"]
    else:
        os.environ["TRITON_INTERPRET"] = before


@pytest.fixture(scope="session")
def device() -> torch.device:
    return DEVICE
