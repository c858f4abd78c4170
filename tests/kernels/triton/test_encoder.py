"""Encoders' kernels against the reference and torch; an input's bits in any company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from penstock_kernels.reference import encoder as reference
from penstock_kernels.triton.attention.encoder import (
    InputPlan,
    InputVariant,
    encoder_attention,
    plan_inputs,
)
from penstock_kernels.triton.rowwise.activation import activate
from penstock_kernels.triton.rowwise.norms import add_layer_norm, layer_norm
from penstock_kernels.triton.rowwise.pool_rows import max_rows, mean_rows
from penstock_kernels.triton.tiles import encoder_tiles
from tests.kernels.triton.closeness import UNITS, assert_close

LENGTHS = [1, 67, 2, 33]


def drawn(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def attended(
    qkv: Tensor, lengths: list[int], bias: Tensor | None, device: torch.device
) -> tuple[Tensor, ...]:
    """What each input gets. qkv: [rows, 3, heads, head_dim]."""
    tiles = encoder_tiles(qkv.shape[-1], qkv.dtype)
    tensors = [torch.from_numpy(each).to(device) for each in plan_inputs(lengths, tiles)]
    where = None if bias is None else bias.to(device)
    parts = qkv.to(device).unbind(1)
    return encoder_attention(*parts, InputPlan(tiles, *tensors), where).cpu().split(lengths)


def by_place(bias: Tensor, longest: int) -> Tensor:
    place = torch.arange(longest)
    return bias[:, place[None, :] - place[:, None] + bias.shape[1] // 2]


CASES = [(3, 12, False), (2, 33, True), (1, 128, False), (1, 160, True)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: tuple[int, int, bool], dtype: torch.dtype, device: torch.device) -> None:
    heads, dim, biased = case
    qkv = (drawn(sum(LENGTHS), 3, heads, dim) * 1.5).to(dtype)
    bias = drawn(heads, 2 * 140 - 1, seed=2).to(dtype) if biased else None
    found = attended(qkv, LENGTHS, bias, device)
    wide = None if bias is None else by_place(bias.double(), max(LENGTHS))
    wanted = reference.attend(*qkv.double().unbind(1), LENGTHS, wide)
    for ours, exact in zip(found, wanted.split(LENGTHS), strict=True):
        # Weights are rounded to the dtype before they are multiplied.
        bound = 1e-5 if dtype == torch.float32 else 2 * UNITS[dtype]
        assert (ours.double() - exact).abs().max() < bound * qkv.abs().max()


def test_an_inputs_attention_is_its_own(dtype: torch.dtype, device: torch.device) -> None:
    qkv = drawn(sum(LENGTHS), 3, 1, 24).to(dtype)
    bias = drawn(1, 279).to(dtype)
    together = attended(qkv, LENGTHS, bias, device)
    turned = [part.contiguous() for part in qkv.split(LENGTHS)][::-1]
    backwards = attended(torch.cat(turned), LENGTHS[::-1], bias, device)[::-1]
    for part, one, other in zip(qkv.split(LENGTHS), together, backwards, strict=True):
        (alone,) = attended(part.contiguous(), [len(part)], bias, device)
        assert torch.equal(alone, one)
        assert torch.equal(alone, other)


VARIANTS = {
    "window": InputVariant(window=9),
    "wide window": InputVariant(window=40),
    "back": InputVariant(causal=True),
    "capped": InputVariant(window=5, causal=True, soft_cap=3.0),
}


def within(parts: tuple[Tensor, ...], scale: float, variant: InputVariant) -> Tensor:
    """One input's attention, in float64."""
    query, key, value = (each.double().transpose(0, 1) for each in parts)
    shared = len(query) // len(key)
    scores = query @ key.repeat_interleave(shared, 0).transpose(1, 2) * scale
    if variant.soft_cap:
        scores = torch.tanh(scores / variant.soft_cap) * variant.soft_cap
    place = torch.arange(scores.shape[-1])
    apart = place[None, :] - place[:, None]
    hidden = apart.abs() >= (variant.window or len(place))
    if variant.causal:
        hidden = hidden | (apart > 0)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return (weights @ value.repeat_interleave(shared, 0)).transpose(0, 1)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_tokens_see(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Two heads share a key head. Each input has the bits that it has alone."""
    variant, scale, dim = VARIANTS[name], 0.3, 20
    tiles, rows = encoder_tiles(dim, dtype), sum(LENGTHS)
    whole = [(drawn(rows, heads, dim, seed=heads) * 1.5).to(dtype) for heads in (4, 2)]
    whole.append(drawn(rows, 2, dim, seed=3).to(dtype))

    def attended(parts: list[Tensor], lengths: list[int]) -> tuple[Tensor, ...]:
        planned = [torch.from_numpy(each).to(device) for each in plan_inputs(lengths, tiles)]
        plan, own = InputPlan(tiles, *planned), [each.to(device) for each in parts]
        return encoder_attention(*own, plan, scale=scale, variant=variant).cpu().split(lengths)

    found = attended(whole, LENGTHS)
    for ours, *parts in zip(found, *(each.split(LENGTHS) for each in whole), strict=True):
        bound = 1e-5 if dtype == torch.float32 else 2 * UNITS[dtype]
        exact = within(tuple(parts), scale, variant)
        assert (ours.double() - exact).abs().max() < bound * whole[2].abs().max()
        (alone,) = attended([each.contiguous() for each in parts], [len(ours)])
        assert torch.equal(alone, ours)


def test_heads_that_lie_apart_are_refused(device: torch.device) -> None:
    query = torch.zeros(4, 2, 16, device=device).transpose(0, 1)
    with pytest.raises(ValueError, match="heads of a row must lie together"):
        encoder_attention(query, query, query, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 45, 384, 1000])
def test_layer_norm(size: int, dtype: torch.dtype, device: torch.device) -> None:
    x, residual = (drawn(5, size) * 3 + 1).to(dtype), drawn(5, size, seed=2).to(dtype)
    gain, shift = drawn(size, seed=3).to(dtype), drawn(size, seed=4).to(dtype)
    here = [each.to(device) for each in (x, residual, gain, shift)]
    plain = layer_norm(here[0], *here[2:], 1e-5)
    assert_close(plain, functional.layer_norm(x, (size,), gain, shift, 1e-5), floats=64)
    assert torch.equal(layer_norm(here[0][3:4], *here[2:], 1e-5), plain[3:4])
    both = x + residual
    added = add_layer_norm(*here, 1e-5)
    assert_close(added, functional.layer_norm(both, (size,), gain, shift, 1e-5), floats=64)
    assert torch.equal(here[1].cpu(), both)


TORCHS = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "tanh": torch.tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.parametrize("kind", TORCHS)
def test_activations(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    x = (drawn(7, 333) * 4).to(dtype)
    x[0, :3] = torch.tensor([-100, 0, 100])
    whole = activate(x.to(device), kind)
    assert_close(whole, TORCHS[kind](x.double()).to(dtype))
    assert torch.equal(activate(x[4:5].to(device), kind), whole[4:5])
    x[1, 0] = float("nan")
    assert activate(x.to(device), kind)[1, 0].isnan()


def test_an_unknown_activation(device: torch.device) -> None:
    with pytest.raises(ValueError, match="'swish'; known are gelu, gelu_tanh, relu, tanh"):
        activate(torch.zeros(1, device=device), "swish")


@pytest.mark.parametrize("size", [3, 130])
def test_pooled_rows(size: int, dtype: torch.dtype, device: torch.device) -> None:
    lengths = torch.tensor([1, 40, 16, 7], dtype=torch.int32)
    starts = lengths.cumsum(0).int() - lengths
    x = drawn(int(lengths.sum()), size).to(dtype)
    mean, most = (
        pool(x.to(device), starts.to(device), lengths.to(device)).cpu()
        for pool in (mean_rows, max_rows)
    )
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        own = x[start : start + length]
        assert (mean[row] - own.double().mean(0)).abs().max() < 1e-6
        assert torch.equal(most[row], own.float().amax(0))
        alone = mean_rows(own.to(device), starts[:1].to(device), length[None].to(device))
        assert torch.equal(alone[0].cpu(), mean[row])


def test_what_is_no_number_is_not_pooled_away(device: torch.device) -> None:
    x = torch.tensor([[1.0, 2.0], [float("nan"), 3.0]], device=device)
    starts = torch.tensor([0], dtype=torch.int32, device=device)
    most = max_rows(x, starts, starts + 2)
    assert most.tolist() == [[float("inf"), 3.0]]
    assert mean_rows(x, starts, starts + 2)[0].isnan().tolist() == [True, False]
