"""Rounding as IEEE 754 says, where the interpreter's own differs from the device's."""

from __future__ import annotations

import ctypes
import ctypes.util

import numpy as np
import pytest
import torch

from tests.kernels.triton.rounding_kernels import fuse_all, round_all, widen_all


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_rounding(kept: torch.dtype, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)
    scales = 10.0 ** torch.randint(-4, 3, (4096,), generator=generator)
    x = (torch.randn(4096, generator=generator) * scales).clamp(-448, 448)
    x[:8] = torch.tensor([0.0, -0.0, 448.0, 2.0**-10, 3 * 2.0**-10, 1 + 2**-8, 1 + 3 * 2**-8, 17.0])
    out = torch.empty(4096, dtype=kept, device=device)
    round_all[(1,)](x.to(device), out, 4096)
    assert torch.equal(out.cpu().float(), x.to(kept).float())


def test_every_fp8_number_is_read(device: torch.device) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    out = torch.empty(256, device=device)
    widen_all[(1,)](numbers.to(device), out, 256)
    finite = ~numbers.float().isnan()  # The interpreter reads the two NaNs as 480.
    assert torch.equal(out.cpu()[finite], numbers.float()[finite])


def test_a_fused_sum_is_rounded_once(device: torch.device) -> None:
    """As C's fmaf does it; among them sums that cancel, subnormal ones, and those that float64
    would round to a tie."""
    fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    random_ = np.random.default_rng(1)
    bits = random_.integers(0, 2**32, (3, 4096), dtype=np.uint64).astype(np.uint32)
    x, y, z = bits.view(np.float32).copy()
    x[:3000], y[:3000] = random_.standard_normal((2, 3000))
    z[:1000] = random_.standard_normal(1000)
    z[1000:2000] = -(x[1000:2000] * y[1000:2000])  # Their difference is what this rounds off.
    # Ties of float32, but for a bit that float64 doesn't have.
    x[2000:2500], y[2000:2500] = 2.0**-30, 2.0 ** random_.integers(-60, -20, 500)
    z[2000:2500] = 1 + 2.0 ** -random_.integers(10, 23, 500)
    x[2500:2600], y[2500:2600], z[2500:2600] = 1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60
    x[2600:2700] = 1e-30
    y[2600:2700], z[2600:2700] = 1e-10 * random_.standard_normal(100), 1e-41
    out = torch.empty(4096, device=device)
    fuse_all[(1,)](*(torch.from_numpy(each).to(device) for each in (x, y, z)), out, 4096)
    wanted = np.array([fmaf(*each) for each in zip(x, y, z, strict=True)], np.float32)
    with np.errstate(all="ignore"):
        twice = (x * y + z).view(np.uint32)
    nan = np.isnan(wanted)
    found = out.cpu().numpy()
    assert (twice != wanted.view(np.uint32))[~nan].sum() > 100
    assert np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found[~nan].view(np.uint32), wanted[~nan].view(np.uint32))
