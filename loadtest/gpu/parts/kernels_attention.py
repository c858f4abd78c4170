"""Paged attention, of decode steps and of prompts, beside torch's own over contiguous tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from loadtest.gpu.cost import attention_flops, decode_attention_bytes
from loadtest.gpu.parts.cases import Bench, Case, drawn
from loadtest.gpu.timing import Work
from penstock.model.config import ModelConfig
from penstock_kernels.triton.attention.paged import paged_attention
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, plan_attention
from penstock_kernels.triton.tiles import (
    KEY_SPLIT,
    AttentionChoice,
    AttentionTiles,
    attention_choice,
)
from penstock_worker.attention.flash_attention import FlashAttention, LongChunks
from penstock_worker.attention.flash_choice import library
from penstock_worker.attention.interface import PLAIN_RULE
from penstock_worker.attention.triton_encoded import LayerCache

BLOCK = 16
COMPARED = 64
"""Queries of a prompt that are held against the reference."""
TORCH = "scaled_dot_product_attention"


def decode(
    config: ModelConfig,
    batch: int,
    context: int,
    *,
    invariant: bool = False,
    cache: torch.dtype = torch.bfloat16,
) -> Case:
    """context: with the new token."""
    shape = Shape(config, batch, context - 1, 1, invariant, cache)
    heads = config.num_heads, config.num_kv_heads, config.head_dim
    size = decode_attention_bytes(batch, context, *heads, cache.itemsize)
    return shape.case("decode", f"{batch} x {context}", _decode_by_torch, size)


def chunk(
    config: ModelConfig, sequences: int, before: int, new: int, *, invariant: bool = False
) -> Case:
    """The last `new` tokens of prompts of which `before` are in the cache."""
    name = f"{sequences} x {new}" + (f" after {before}" if before else "")
    shape = Shape(config, sequences, before, new, invariant)
    return shape.case("prefill", name, None if before else _whole_by_torch)


def flash_chunk(config: ModelConfig, sequences: int, before: int, new: int) -> Case:
    """The case of `chunk`, by FlashAttention 3 over the same cache, as the worker calls it."""
    own, shape = chunk(config, sequences, before, new), Shape(config, sequences, before, new)
    return replace(own, make=shape.flash_bench, op="prefill attention, FlashAttention 3", torch="")


def by_backend(config: ModelConfig, sequences: int, new: int, name: str) -> Case:
    """Whole prompts by one of torch's backends, of any that `torch.nn.attention.SDPBackend` has."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def make(device: torch.device) -> Bench:
        shape = Shape(config, sequences, 0, new)
        theirs = _whole_by_torch(shape, drawn(device, 1), [])

        def work() -> object:
            with sdpa_kernel(SDPBackend.__members__[name]):
                return theirs()

        return Bench(lambda _: work)

    own = chunk(config, sequences, 0, new)
    return replace(own, make=make, op=f"prefill attention, torch's {name}", torch="")


@dataclass(frozen=True)
class Shape:
    """Sequences that compute `new` tokens each behind `before` that are in the cache."""

    config: ModelConfig
    sequences: int
    before: int
    new: int
    invariant: bool = False
    cache: torch.dtype = torch.bfloat16

    def case(
        self,
        what: str,
        name: str,
        by_torch: Callable[[Shape, Tensor, list[Tensor]], Work] | None,
        size: float = 0.0,
    ) -> Case:
        """by_torch: the query and the caches to torch's call for the same, in the default mode."""
        config = self.config
        kinds = {"batch-invariant": self.invariant, "fp8 KV": self.cache != torch.bfloat16}
        suffix = "".join(f", {kind}" for kind, is_so in kinds.items() if is_so)
        theirs = None if suffix else by_torch
        flops = attention_flops(config.num_heads, config.head_dim, self.before, self.new)
        return Case(
            name,
            lambda device: self.bench(device, theirs),
            f"{what} attention{suffix}",
            size=size,
            flops=self.sequences * flops,
            torch=TORCH if theirs else "",
        )

    def bench(
        self, device: torch.device, by_torch: Callable[[Shape, Tensor, list[Tensor]], Work] | None
    ) -> Bench:
        config, scale = self.config, self.config.head_dim**-0.5
        caches = self.caches(device)
        query = drawn(device, self.sequences * self.new, config.num_heads, config.head_dim)
        within = np.unique(np.linspace(0, self.new - 1, COMPARED).astype(int))
        places = np.arange(self.sequences)[:, None] * self.new + within
        rows = torch.from_numpy(places.ravel()).to(device)

        def work(tiles: AttentionTiles | None) -> Work:
            laid = self.plan(tiles, device)
            return lambda: paged_attention(query, *caches, laid, scale)

        def reference() -> Tensor:
            tables = self.plan(None, device).tables
            positions = torch.from_numpy(self.before + within).to(device)
            pairs = zip(query[rows].unflatten(0, (self.sequences, -1)), tables, strict=True)
            return torch.cat(
                [attended(some, caches, table, positions, scale) for some, table in pairs]
            )

        theirs = by_torch(self, query, caches) if by_torch else None
        return Bench(work, reference, lambda result: result[rows], torch=theirs)

    def flash_bench(self, device: torch.device) -> Bench:
        """Raises Refusal where the package can't be used."""
        kernel, name = library()
        config, scale = self.config, self.config.head_dim**-0.5
        cache, plan = LayerCache(*self.caches(device), 0, None), self.plan(None, device)
        query = drawn(device, self.sequences * self.new, config.num_heads, config.head_dim)
        chunks = LongChunks(self.sequences * self.new, self.new)
        step = FlashAttention(kernel, name, frozenset()).step(chunks, plan)
        return Bench(lambda _: lambda: step.long(query, cache, plan, scale, PLAIN_RULE))

    def caches(self, device: torch.device) -> list[Tensor]:
        """Keys and values, a head's tokens one after the other: as TritonAttention has a layer's,
        so that a block's keys of a head are read in one piece."""
        config = self.config
        slots = self.sequences * -(-(self.before + self.new) // BLOCK) * BLOCK
        sizes = config.num_kv_heads, slots, config.head_dim
        return [torch.randn(sizes, device=device).to(self.cache) for _ in range(2)]

    def plan(self, tiles: AttentionTiles | None, device: torch.device) -> DeviceAttentionPlan:
        """Every sequence's blocks lie scattered, as in a pool that has been used.  None: tiles as
        the worker has them."""
        choice = attention_choice(self.config.head_dim, batch_invariant=self.invariant)
        if tiles is not None:
            choice = AttentionChoice(replace(tiles, split=tiles.split or KEY_SPLIT), tiles)
        length = self.before + self.new
        need = -(-length // BLOCK)
        blocks = np.random.default_rng(0).permutation(self.sequences * need)
        return plan_attention(
            list(blocks.reshape(self.sequences, need)),
            np.full(self.sequences, self.new),
            np.full(self.sequences, length),
            block_size=BLOCK,
            group=self.config.num_heads // self.config.num_kv_heads,
            choice=choice,
            device=device,
        )


def _decode_by_torch(shape: Shape, query: Tensor, caches: list[Tensor]) -> Work:
    """Over equal tensors, one sequence after the other: what torch would have without pages."""
    batch, context = shape.sequences, shape.before + 1
    alike = [each[:, : batch * context].unflatten(1, (batch, context)) for each in caches]
    key, value = (each.transpose(0, 1).contiguous() for each in alike)
    return lambda: functional.scaled_dot_product_attention(
        query[:, :, None], key, value, enable_gqa=True
    )


def _whole_by_torch(shape: Shape, query: Tensor, caches: list[Tensor]) -> Work:
    config = shape.config
    q, k, v = (
        drawn(query.device, shape.sequences, heads, shape.new, config.head_dim)
        for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    )
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


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
