"""Sequences in a shuffled, dirty cache, and attention over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.attention.paged import FULL, Variant, paged_attention
from penstock_kernels.triton.attention.plan import plan_attention
from penstock_kernels.triton.tiles import AttentionChoice


@dataclass
class Sequence:
    """A sequence's own tensors: everything that its attention may depend on."""

    query: Tensor
    key: Tensor
    value: Tensor
    last_seen: np.ndarray | None = None
    """[tokens] int64; None: a token sees itself and those before it."""


@dataclass(frozen=True)
class Case:
    """One way of computing. choice: the tiles."""

    choice: AttentionChoice
    block_size: int = 16
    variant: Variant = FULL
    scales: KVScales | None = None
    """On the CPU."""
    cache: torch.dtype | None = None
    sinks: Tensor | None = None
    causal: bool = False
    """Whether no row sees further than itself, whatever a sequence says."""


def sequence(seed: int, length: int, shape: tuple[int, int, int], dtype: torch.dtype) -> Sequence:
    """shape: heads, KV heads, head size."""
    generator = torch.Generator().manual_seed(seed)
    heads, kv_heads, dim = shape

    def draw(count: int) -> Tensor:
        return torch.randn(length, count, dim, generator=generator).to(dtype)

    return Sequence(draw(heads), draw(kv_heads), draw(kv_heads))


def run_step(
    work: list[tuple[Sequence, int, int]], case: Case, device: torch.device
) -> list[Tensor]:
    """Attention of (sequence, start, count) in one call; results on the CPU."""
    size = case.block_size
    blocks = [-(-(start + count) // size) for _, start, count in work]
    shuffled = np.random.default_rng(len(work)).permutation(sum(blocks) + 2)
    first = work[0][0]
    _, kv_heads, dim = first.key.shape
    kept = case.cache or first.key.dtype
    slots = len(shuffled) * size
    # By slot, then head, as a worker has it; not-a-number wherever nobody wrote.
    keys = torch.full((slots, kv_heads, dim), float("nan"))
    values, tables, used = keys.clone(), [], 0
    for (one, start, count), need in zip(work, blocks, strict=True):
        table = shuffled[used : used + need]
        used += need
        at = np.arange(start + count)
        place = torch.from_numpy(table[at // size] * size + at % size)
        keys[place], values[place] = stored(one, start + count, case.scales)
        tables.append(table)
    counts = np.array([count for _, _, count in work])
    query = torch.cat([one.query[start : start + count] for one, start, count in work])
    seen = None
    if any(one.last_seen is not None for one, *_ in work):
        seen = np.concatenate(
            [
                (np.arange(start + count) if one.last_seen is None else one.last_seen)[
                    start : start + count
                ]
                for one, start, count in work
            ]
        )
    plan = plan_attention(
        tables,
        counts,
        np.array([start + count for _, start, count in work]),
        block_size=size,
        group=query.shape[1] // kv_heads,
        choice=case.choice,
        device=device,
        last_seen=seen,
    )
    padding = torch.full((2, *query.shape[1:]), float("nan"), dtype=query.dtype)
    caches = [rows.to(kept).to(device).transpose(0, 1) for rows in (keys, values)]
    out = paged_attention(
        torch.cat((query, padding)).to(device),
        *caches,
        plan.causal() if case.causal else plan,
        query.shape[2] ** -0.5,
        variant=case.variant,
        scales=None if case.scales is None else on(device, case.scales),
        sinks=None if case.sinks is None else case.sinks.to(device),
    ).cpu()
    assert not out[len(query) :].any()
    return list(out[: len(query)].split(counts.tolist()))


def stored(one: Sequence, length: int, scales: KVScales | None) -> tuple[Tensor, Tensor]:
    """The first keys and values, as a cache with such scales holds them but for its dtype."""
    key, value = one.key[:length].float(), one.value[:length].float()
    if scales is None:
        return key, value
    return key / scales.key[:, None], value / scales.value[:, None]


def on(device: torch.device, scales: KVScales) -> KVScales:
    return KVScales.of(scales.key.to(device), scales.value.to(device))


def dense(one: Sequence, variant: Variant = FULL, sinks: Tensor | None = None) -> Tensor:
    """In float64, every query of the sequence."""
    length, heads, dim = one.query.shape
    group = heads // one.key.shape[1]
    key = one.key.double().repeat_interleave(group, 1)
    value = one.value.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", one.query.double(), key) * dim**-0.5
    if variant.soft_cap:
        scores = variant.soft_cap * torch.tanh(scores / variant.soft_cap)
    hidden = torch.ones(length, length).triu(1).bool()
    at = torch.arange(length)
    if one.last_seen is not None:
        hidden = at > torch.from_numpy(one.last_seen)[:, None]
    if variant.chunk:
        hidden |= at < (at // variant.chunk * variant.chunk)[:, None]
    if variant.window:
        hidden |= torch.ones(length, length).tril(-variant.window).bool()
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        apart = sinks.double()[:, None, None].expand(-1, length, 1)
        scores = torch.cat((scores, apart), -1)
    weights = scores.softmax(-1)[..., :length]
    return torch.einsum("hqk,khd->qhd", weights, value)
