"""Norms, gates and rotations against the reference, and each row against itself elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from penstock_kernels import reference
from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.attention.rope_write import (
    QueryKeyNorms,
    RotaryTables,
    rope_write,
)
from penstock_kernels.triton.rowwise.activation import (
    KINDS,
    activate,
    gated,
    gelu_mul,
    silu_mul,
)
from penstock_kernels.triton.rowwise.norms import add_rms_norm, layer_norm, rms_norm
from penstock_worker.attention.interface import HeadNorms, Rotation
from penstock_worker.attention.reference import normalised_and_rotated
from tests.kernels.triton.closeness import assert_close

pytestmark = pytest.mark.timeout(300)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 33, 576, 1100])
def test_rms_norm(size: int, dtype: torch.dtype, device: torch.device) -> None:
    x, weight = drawn(1, 5, size).to(dtype), drawn(2, size).to(dtype)
    whole = rms_norm(x.to(device), weight.to(device), 1e-5)
    assert_close(whole, reference.rms_norm(x, weight, 1e-5))
    assert torch.equal(rms_norm(x[3:4].to(device), weight.to(device), 1e-5), whole[3:4])


def test_rms_norm_of_heads(dtype: torch.dtype, device: torch.device) -> None:
    x, weight = drawn(1, 3, 5, 24).to(dtype), drawn(2, 24).to(dtype)
    ours = rms_norm(x.to(device), weight.to(device), 1e-6)
    assert_close(ours, reference.rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize("size", [33, 576])
def test_norm_of_a_sum(size: int, dtype: torch.dtype, device: torch.device) -> None:
    x, residual = drawn(1, 4, size).to(dtype), drawn(2, 4, size).to(dtype)
    weight = drawn(3, size).to(dtype)
    held = residual.to(device, copy=True)
    ours = add_rms_norm(x.to(device), held, weight.to(device), 1e-5)
    total = residual + x
    assert torch.equal(held.cpu(), total)
    assert_close(ours, reference.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("size", [1, 577, 1536])
def test_gates(size: int, dtype: torch.dtype, device: torch.device) -> None:
    gate_up = (drawn(1, 4, 2 * size) * 5).to(dtype)
    gate_up[0, 0] = -100
    for ours, theirs in ((silu_mul, reference.silu_mul), (gelu_mul, reference.gelu_mul)):
        whole = ours(gate_up.to(device))
        assert_close(whole, theirs(gate_up))
        assert torch.equal(ours(gate_up[2:3].to(device)), whole[2:3])


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu2", "clamped_swiglu"])
def test_activations(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    """With a gate, and without where there is such a kind. Large enough to be clamped."""
    x = (drawn(1, 4, 2 * 37) * 5).to(dtype)
    whole = gated(x.to(device), kind)
    assert_close(whole, reference.gated_activation(x, kind), floats=64)
    assert torch.equal(gated(x[2:3].to(device), kind), whole[2:3])
    if kind != "clamped_swiglu":
        assert_close(activate(x.to(device), kind), reference.plain_activation(x, kind), floats=64)


def test_layer_norm_without_a_bias(dtype: torch.dtype, device: torch.device) -> None:
    x, weight = drawn(1, 5, 33).to(dtype), drawn(2, 33).to(dtype)
    whole = layer_norm(x.to(device), weight.to(device), None, 1e-5)
    assert_close(whole, reference.layer_norm(x, weight, None, 1e-5))
    assert torch.equal(layer_norm(x[3:4].to(device), weight.to(device), None, 1e-5), whole[3:4])


def test_gelu_is_torch_gelu() -> None:
    gate_up = drawn(1, 3, 200) * 4
    gate, up = gate_up.double().chunk(2, -1)
    wanted = torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert (reference.gelu_mul(gate_up).double() - wanted).abs().max() < 1e-5


TORCHS_OWN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
    "relu2": lambda x: torch.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


def test_each_kind_without_a_gate_is_torchs_own(device: torch.device) -> None:
    """One test of all, so that each runs at every landing. The two forms of gelu differ by 4e-4."""
    assert set(TORCHS_OWN) == set(KINDS)
    x = torch.linspace(-6.0, 6.0, 241)
    for kind, own in TORCHS_OWN.items():
        far = (activate(x.to(device), kind).cpu().double() - own(x.double())).abs().max()
        assert far < 1e-5, kind


HEADS = [(9, 3, 64), (5, 1, 80), (4, 4, 96), (16, 8, 128), (2, 1, 192), (8, 2, 256)]


@pytest.mark.parametrize("shape", HEADS, ids=str)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
def test_rope_and_write(
    shape: tuple[int, int, int], norm: bool, dtype: torch.dtype, device: torch.device
) -> None:
    heads, kv_heads, dim = shape
    count = 3
    qkv = drawn(1, count, heads + 2 * kv_heads, dim).to(dtype)
    query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
    cos, sin = reference.rope_table(reference.inverse_frequencies(dim, 1e4), 40)
    positions, slots = torch.tensor([0, 39, 7]), torch.tensor([5, -1, 2])
    weights = drawn(2, dim).to(dtype), drawn(3, dim).to(dtype)
    norms = QueryKeyNorms(*(weight.to(device) for weight in weights), 1e-6) if norm else None
    caches = [torch.full((6, kv_heads, dim), 9.0).to(dtype).transpose(0, 1) for _ in range(2)]
    ours = [cache.to(device) for cache in caches]
    parts = qkv.to(device).split((heads, kv_heads, kv_heads), 1)
    rotated = rope_write(
        *parts, RotaryTables(cos.to(device), sin.to(device), positions.to(device)),
        slots.to(device), *ours, norms=norms,
    )  # fmt: skip
    if norm:
        query = reference.rms_norm(query.contiguous(), weights[0], 1e-6)
        key = reference.rms_norm(key.contiguous(), weights[1], 1e-6)
    wanted = reference.apply_rope(query, cos[positions], sin[positions])
    assert_close(rotated, wanted, roundings=1 + norm)
    key = reference.apply_rope(key, cos[positions], sin[positions])
    held = slots >= 0
    reference.write_kv(key[held], value[held], *caches, slots[held])
    assert_close(ours[0], caches[0], roundings=1 + norm)
    assert torch.equal(ours[1].cpu(), caches[1])


@pytest.mark.parametrize(
    ("dims", "norm", "grows"), [(24, True, True), (0, True, False), (0, False, False)]
)
def test_heads_that_rotate_in_part_or_not(
    dims: int, norm: bool, grows: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """With sizes that no block divides, and queries that grow with their position."""
    heads, kv_heads, dim, count = 3, 1, 38, 3
    query, key, value = drawn(1, count, heads + 2 * kv_heads, dim).to(dtype).split((3, 1, 1), 1)
    positions, slots = torch.tensor([0, 39, 7]), torch.tensor([5, -1, 2])
    weights = drawn(2, dim).to(dtype), drawn(3, dim).to(dtype)
    growth = 1.0 + torch.arange(40) / 10.0 if grows else None
    rotation, theirs = None, None
    if dims:
        cos, sin = reference.rope_table(reference.inverse_frequencies(dims, 1e4), 40)
        theirs = Rotation(cos, sin, positions, growth)
        there = (each.to(device) for each in (cos, sin, positions))
        rotation = RotaryTables(*there, None if growth is None else growth.to(device))
    norms = QueryKeyNorms(*(each.to(device) for each in weights), 1e-6) if norm else None
    caches = [torch.full((6, kv_heads, dim), 9.0).to(dtype).transpose(0, 1) for _ in range(2)]
    ours = [cache.to(device) for cache in caches]
    parts = (each.contiguous().to(device) for each in (query, key, value))
    found = rope_write(*parts, rotation, slots.to(device), *ours, norms=norms)
    head_norms = HeadNorms(*weights, 1e-6) if norm else None
    query, key = normalised_and_rotated(query.contiguous(), key.contiguous(), theirs, head_norms)
    assert_close(found, query, roundings=1 + norm + grows)
    held = slots >= 0
    reference.write_kv(key[held], value[held], *caches, slots[held])
    assert_close(ours[0], caches[0], roundings=1 + norm)
    assert torch.equal(ours[1].cpu(), caches[1])


@pytest.mark.parametrize("kept", [torch.float8_e4m3fn, torch.bfloat16], ids=str)
def test_a_cache_of_another_dtype(kept: torch.dtype, device: torch.device) -> None:
    """An FP8 cache holds value / scale of the head, saturated."""
    heads = drawn(1, 4, 2, 96)
    heads[0, 0, 0] = 1e6
    scales = KVScales.of(
        torch.tensor([0.5, 2.0], device=device), torch.tensor([0.25, 0.125], device=device)
    )
    caches = [torch.zeros(2, 4, 96).to(kept).to(device) for _ in range(2)]
    cos, sin = torch.ones(1, 48, device=device), torch.zeros(1, 48, device=device)
    tables = RotaryTables(cos, sin, torch.zeros(4, dtype=torch.int32, device=device))
    ours = heads.to(device)
    rope_write(ours, ours, ours, tables, torch.arange(4).to(device), *caches, scales=scales)
    for cache, scale in zip(caches, (scales.key, scales.value), strict=True):
        wanted = heads.transpose(0, 1) / scale.cpu()[:, None, None]
        wanted = wanted.clamp(-448, 448) if kept == torch.float8_e4m3fn else wanted
        assert torch.equal(cache.cpu().float(), wanted.to(kept).float())
