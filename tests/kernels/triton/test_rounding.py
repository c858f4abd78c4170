"""Rounding as IEEE 754 says, where the interpreter's own differs from the device's."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.triton.rounding_kernels import round_all, widen_all


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
