"""Tiles of paged attention: of decode, of prefill, and the one choice for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from loadtest.gpu.cost import attention_flops, decode_attention_bytes
from loadtest.gpu.parts.kernels_attention import BLOCK, layout, pool
from loadtest.gpu.timing import Work
from loadtest.gpu.tune.settings import Bench, Case, Setting, Sizes
from penstock.model_config import ModelConfig
from penstock_kernels.triton.attention.paged import paged_attention
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan
from penstock_kernels.triton.tiles import AttentionChoice, AttentionTiles, attention_choice

_KEYS = "keys is shared by few, many and batch_invariant of every head_dim <= 128"
_SPLIT = (
    "split is KEY_SPLIT, shared by few, many and batch_invariant of every head_dim, and the least "
    "context of a decode graph"
)
_WARPS = "warps is the same for every head_dim"
MOVES = {
    "few": {
        "rows": "rows is the same for every head_dim",
        "keys": _KEYS,
        "split": _SPLIT,
        "warps": _WARPS,
        "stages": "stages is two more than what many and batch_invariant have, for every "
        "head_dim <= 128",
    },
    "many": {
        "rows": "rows is the same for every head_dim <= 128",
        "keys": _KEYS,
        "split": _SPLIT,
        "warps": _WARPS,
        "stages": "stages is shared with batch_invariant, few has two more, for every "
        "head_dim <= 128",
    },
    "invariant": {
        "rows": "rows is the same for every head_dim",
        "keys": _KEYS,
        "split": _SPLIT,
        "warps": _WARPS,
        "stages": "stages is shared with many, few has two more, for every head_dim <= 128",
    },
}
"""Of `attention_choice`, where head_dim <= 128."""

COMPARED = 64
"""Queries of a prompt that are held against the reference."""


def decode(config: ModelConfig, sizes: Sizes) -> Setting:
    return Setting(
        f"attention_choice({config.head_dim}).few",
        "attend",
        attention_choice(config.head_dim).few,
        {
            "rows": (16, 32),
            "keys": (16, 32, 64, 128),
            "split": (256, 512, 1024, 2048),
            "warps": (1, 2, 4, 8),
            "stages": (2, 3, 4, 5, 6),
        },
        (
            replace(decode_case(config, *sizes.decode[0]), weight=2),
            *(decode_case(config, *each) for each in sizes.decode[1:]),
        ),
        sensible=sensible,
        moves=MOVES["few"],
    )


def prefill(config: ModelConfig, sizes: Sizes) -> Setting:
    present = attention_choice(config.head_dim).many
    return Setting(
        f"attention_choice({config.head_dim}).many",
        "attend",
        present,
        {
            "rows": (64, 128, 256),
            "keys": (32, 64, 128),
            "split": (512, 1024, 2048, 8192),
            "warps": (4, 8, 16),
            "stages": (1, 2, 3, 4),
        },
        tuple(chunk_case(config, *each) for each in sizes.chunks),
        (replace(present, rows=64, keys=64, warps=4, stages=2),),
        sensible,
        MOVES["many"],
    )


def invariant(config: ModelConfig, sizes: Sizes) -> Setting:
    return Setting(
        f"attention_choice({config.head_dim}, batch_invariant=True)",
        "attend",
        attention_choice(config.head_dim, batch_invariant=True).few,
        {
            "rows": (16, 32, 64, 128),
            "keys": (32, 64, 128),
            "split": (512, 1024, 2048),
            "warps": (2, 4, 8),
            "stages": (2, 3, 4),
        },
        (decode_case(config, *sizes.decode[0]), chunk_case(config, *sizes.chunks[0])),
        sensible=sensible,
        moves=MOVES["invariant"],
    )


def sensible(tiles: AttentionTiles) -> bool:
    """Some 32 scores a thread, and no more registers than there are."""
    return tiles.keys <= tiles.split and 4 <= tiles.rows * tiles.keys / (32 * tiles.warps) <= 256


def decode_case(config: ModelConfig, batch: int, context: int) -> Case:
    """context: with the new token."""
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    return Case(
        f"decode {batch} x {context}",
        benched(config, batch, context - 1, 1),
        size=decode_attention_bytes(batch, context, heads, kv_heads, dim),
        flops=4 * heads * dim * batch * context,
    )


def chunk_case(config: ModelConfig, sequences: int, before: int, new: int) -> Case:
    return Case(
        f"prefill {sequences} x {new}" + (f" after {before}" if before else ""),
        benched(config, sequences, before, new),
        flops=sequences * attention_flops(config.num_heads, config.head_dim, before, new),
    )


def benched(
    config: ModelConfig, sequences: int, before: int, new: int
) -> Callable[[torch.device], Bench]:
    def make(device: torch.device) -> Bench:
        caches = pool(sequences, before + new, config, device, torch.bfloat16)
        shape = (sequences * new, config.num_heads, config.head_dim)
        query = torch.randn(shape, device=device).bfloat16()
        scale = config.head_dim**-0.5
        within = np.unique(np.linspace(0, new - 1, COMPARED).astype(int))
        rows = torch.from_numpy((np.arange(sequences)[:, None] * new + within).ravel()).to(device)

        def plan(tiles: AttentionTiles) -> DeviceAttentionPlan:
            choice = AttentionChoice(tiles, tiles)
            if device.type != "meta":
                return layout(sequences, before, new, config, device, choice)
            return weightless(
                layout(sequences, before, new, config, torch.device("cpu"), choice), device
            )

        def work(tiles: AttentionTiles) -> Work:
            laid = plan(tiles)
            return lambda: paged_attention(query, *caches, laid, scale)

        def reference() -> Tensor:
            tables = plan(attention_choice(config.head_dim).many).tables
            positions = torch.from_numpy(before + within).to(device)
            parts = rows.view(sequences, -1)
            return torch.cat(
                [
                    attended(query[parts[each]], caches, tables[each], positions, scale)
                    for each in range(sequences)
                ]
            )

        return Bench(work, reference, lambda result: result[rows])

    return make


def attended(
    query: Tensor, caches: list[Tensor], table: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """One sequence's queries at `positions`, in float32 without pages or tiles.

    query: [queries, heads, head_dim].  table: [blocks].  Returns query's shape.
    """
    slots = (table.long()[:, None] * BLOCK + torch.arange(BLOCK, device=table.device)).ravel()
    key, value = (cache[:, slots].float() for cache in caches)
    heads = query.float().unflatten(1, (key.shape[0], -1)) * scale
    scores = torch.einsum("rkgd,ktd->kgrt", heads, key)
    hidden = torch.arange(len(slots), device=table.device) > positions[:, None]
    weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
    return torch.einsum("kgrt,ktd->rkgd", weights, value).flatten(1, 2)


def weightless(plan: DeviceAttentionPlan, device: torch.device) -> DeviceAttentionPlan:
    """The plan with tensors that have shapes only, for compiling."""
    lists = {
        name: tiles
        and replace(tiles, sequences=tiles.sequences.to(device), firsts=tiles.firsts.to(device))
        for name, tiles in (("few", plan.few), ("many", plan.many))
    }
    names = ("tables", "query_starts", "query_lens", "seq_lens")
    return replace(plan, **{name: getattr(plan, name).to(device) for name in names}, **lists)
