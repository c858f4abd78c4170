"""Each op against float64 arithmetic or torch's own composition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from penstock_kernels import reference

pytestmark = pytest.mark.timeout(240)

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def close(ours: torch.Tensor, true: torch.Tensor, dtype: torch.dtype) -> None:
    bound = TOLERANCE[dtype] * true.abs().max()
    assert ours.dtype == dtype
    assert (ours.double() - true).abs().max() <= bound


def test_linear(dtype: torch.dtype) -> None:
    x, weight, bias = random(37, 65, dtype=dtype), random(33, 65, dtype=dtype), random(33)
    true = x.double() @ weight.double().T + bias.to(dtype).double()
    close(reference.linear(x, weight, bias.to(dtype)), true, dtype)
    close(reference.linear(x, weight), x.double() @ weight.double().T, dtype)


def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = random(5, 3, 40, dtype=dtype), random(40, dtype=dtype)
    wide = x.double()
    true = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    close(reference.rms_norm(x, weight, 1e-5), true, dtype)


def test_silu_mul(dtype: torch.dtype) -> None:
    x = random(9, 66, dtype=dtype) * 8
    true = F.silu(x[:, :33].double()) * x[:, 33:].double()
    close(reference.silu_mul(x), true, dtype)


def test_sparse_gate_keeps_the_highest(dtype: torch.dtype) -> None:
    x = random(5, 2 * 4000, dtype=dtype)
    gate, up = x.double().chunk(2, -1)
    limit = gate.mean(-1, keepdim=True) + 1.6448536269514722 * gate.std(-1, False).unsqueeze(-1)
    found = reference.sparse_gate(x, 0.95)
    close(found[:, :4000], (gate - limit).clamp(min=0), dtype)
    assert torch.equal(found[:, 4000:].double(), up)
    assert 0.03 < (found[:, :4000] > 0).double().mean() < 0.07


def test_silu_mul_far_out() -> None:
    x = torch.tensor([[-200.0, 200.0, 1.0, 1.0]])
    assert reference.silu_mul(x).tolist() == [[0.0, 200.0]]


def test_rope_turns_pairs_by_the_angle(dtype: torch.dtype) -> None:
    frequencies = reference.inverse_frequencies(8, 100.0)
    assert torch.allclose(frequencies, torch.tensor([1, 100**-0.25, 0.1, 100**-0.75]))
    x = random(50, 2, 8, dtype=dtype)
    pairs = torch.complex(x[..., :4].double(), x[..., 4:].double())
    angle = torch.arange(50.0, dtype=torch.float64)[:, None, None] * frequencies.double()
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    true = torch.cat((turned.real, turned.imag), -1)
    close(reference.apply_rope(x, *reference.rope_table(frequencies, 50)), true, dtype)


def test_log_softmax_row() -> None:
    logits = random(49_153) * 4
    true = torch.log_softmax(logits.double(), -1)
    assert (reference.log_softmax_row(logits).double() - true).abs().max() < 4e-6


def test_write_kv_touches_only_its_slots() -> None:
    caches = [torch.zeros(2, 12, 3), torch.zeros(2, 12, 3)]
    key, value = random(2, 2, 3), random(2, 2, 3) + 1
    reference.write_kv(key, value, *caches, torch.tensor([7, 2]))
    for cache, written in zip(caches, (key, value), strict=True):
        assert torch.equal(cache[:, 7], written[0])
        assert torch.equal(cache[:, 2], written[1])
        rest = [slot for slot in range(12) if slot not in (2, 7)]
        assert not cache[:, rest].any()
