"""How near a kernel comes to the reference.

The same operations and roundings, but a device's exp, division and fused multiply-adds
differ from the host's in the last bits of float32: half a unit of the last place of the result's
dtype, and a few of float32's.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNITS = {torch.float32: 2**-23, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def assert_close(ours: Tensor, wanted: Tensor, *, floats: int = 16, roundings: int = 1) -> None:
    """Equal up to one unit of the dtype in the last place, and `floats` units of float32's.

    wanted: on the CPU, of the same dtype.  roundings: to the dtype on the way; each but the last
    may be off by a unit of the largest number."""
    if ours.dtype != wanted.dtype or ours.shape != wanted.shape:
        raise AssertionError(f"{ours.dtype} {ours.shape} is not {wanted.dtype} {wanted.shape}")
    far = (ours.cpu().double() - wanted.double()).abs()
    unit = 0 if ours.dtype == torch.float32 else UNITS[ours.dtype]
    size = wanted.double().abs()
    scale = max(1e-6, float(size.max()))
    bound = (size + (roundings - 1) * 2 * scale) * unit + floats * 2**-23 * scale
    worst = (far - bound).max()
    assert worst <= 0, f"off by {far.flatten()[(far - bound).argmax()]}, allowed {bound.max()}"
