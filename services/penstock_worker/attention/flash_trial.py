"""A small step by FlashAttention 3, held against the same in float32: whether this build, on this
device, computes what a layer needs from a cache that lies as ours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.model.attention_spec import KVHeadsSpec
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, plan_attention
from penstock_kernels.triton.tiles import attention_choice
from penstock_worker.attention.flash_attention import FlashAttention, Kernel, LongChunks
from penstock_worker.attention.interface import CacheShape, ScoreRule
from penstock_worker.attention.triton_encoded import LayerCache

STARTS, COUNTS = (40, 37, 0), (1, 150, 70)
"""Tokens before the step, and new ones: a decode, which the library must leave out, and two
chunks."""
WINDOW = 33
"""The widest that is tried: a wider one would reach everything."""
MOST_APART = 0.02
"""Largest difference, as a share of the largest number: several times what two roundings to
bfloat16 make."""


@dataclass(frozen=True)
class Tried:
    """Layers that are tried together."""

    heads: int
    kv_heads: KVHeadsSpec
    scale: float | None
    window: int | None
    soft_cap: float | None


def trial(
    kernel: Kernel, what: Tried, shape: CacheShape, dtype: torch.dtype, device: torch.device
) -> str | None:
    """Returns why the library can't be used for such layers, or None. Slots that no sequence has
    are not-a-number."""
    scale = what.kv_heads.size**-0.5 if what.scale is None else what.scale
    window = None if what.window is None else min(what.window, WINDOW)
    rule = ScoreRule(scale=scale, window=window, soft_cap=what.soft_cap)
    chunks = LongChunks(sum(COUNTS), max(COUNTS))
    query, cache, tables = _drawn(what, shape, dtype)
    keys, values = (each.to(device) for each in cache)
    if shape.heads_of_layers:
        # As in a cache with room for wider layers: a slot's heads lie together.
        keys, values = (
            each.transpose(0, 1).contiguous().transpose(0, 1) for each in (keys, values)
        )
    plan = _plan(tables, shape.block_size, what, device)
    try:
        step = FlashAttention(kernel, "", frozenset()).step(chunks, plan)
        found = step.long(query.to(device), LayerCache(keys, values, 0, None), plan, scale, rule)
        found = found.cpu().float()
    except Exception as error:  # Whatever a build without one of its parts raises.
        return f"a trial failed: {type(error).__name__}: {error}"
    wanted = _expected(query, cache, tables, shape.block_size, rule)
    long = torch.from_numpy(np.repeat(np.array(COUNTS) > plan.choice.split_queries, COUNTS))
    apart = (found[long] - wanted[long]).abs().max() / wanted[long].abs().max()
    if not apart <= MOST_APART:
        return f"in a trial, numbers were {apart:.3g} of the largest away from what they should be"
    return None


def _drawn(
    what: Tried, shape: CacheShape, dtype: torch.dtype
) -> tuple[Tensor, tuple[Tensor, Tensor], list[np.ndarray]]:
    """Queries, keys and values on the host, and each sequence's scattered blocks."""
    generator, size = torch.Generator().manual_seed(0), shape.block_size
    lengths = np.array(STARTS) + COUNTS
    needs = -(-lengths // size)
    order = np.random.default_rng(0).permutation(int(needs.sum()) + 1)
    tables = np.split(order[:-1], np.cumsum(needs)[:-1])
    sizes = what.kv_heads.count, len(order) * size, what.kv_heads.size

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(dtype)

    keys, values = (torch.full(sizes, torch.nan, dtype=dtype) for _ in range(2))
    for table, length in zip(tables, lengths, strict=True):
        slots = _slots(table, int(length), size)
        for each in (keys, values):
            each[:, slots] = draw(sizes[0], int(length), sizes[2])
    query = draw(sum(COUNTS), what.heads, what.kv_heads.size)
    return query, (keys, values), tables


def _slots(table: np.ndarray, length: int, size: int) -> Tensor:
    return torch.from_numpy((table[:, None] * size + np.arange(size)).ravel()[:length])


def _plan(
    tables: list[np.ndarray], size: int, what: Tried, device: torch.device
) -> DeviceAttentionPlan:
    return plan_attention(
        tables,
        np.array(COUNTS),
        np.array(STARTS) + COUNTS,
        block_size=size,
        group=what.heads // what.kv_heads.count,
        choice=attention_choice(what.kv_heads.size),
        device=device,
    )


def _expected(
    query: Tensor,
    cache: tuple[Tensor, Tensor],
    tables: list[np.ndarray],
    size: int,
    rule: ScoreRule,
) -> Tensor:
    """Computes the same attention in float32, one sequence after the other. Returns [rows, heads,
    head size]."""
    found = []
    queries = query.float().split(COUNTS)
    for own, table, start in zip(queries, tables, STARTS, strict=True):
        slots = _slots(table, start + len(own), size)
        keys, values = (each[:, slots].float() for each in cache)
        grouped = own.unflatten(1, (len(keys), -1))
        scores = torch.einsum("rkgd,ktd->kgrt", grouped, keys) * (rule.scale or 1.0)
        if rule.soft_cap:
            scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
        distance = start + torch.arange(len(own))[:, None] - torch.arange(len(slots))
        hidden = distance < 0
        if rule.window is not None:
            hidden |= distance >= rule.window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        found.append(torch.einsum("kgrt,ktd->rkgd", weights, values).flatten(1, 2))
    return torch.cat(found)
