"""Paged attention, of decode steps and of prompts, beside torch's own over contiguous tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from loadtest.gpu.cost import attention_flops, decode_attention_bytes
from loadtest.gpu.job import Job
from loadtest.gpu.parts.cases import Bench, Case, drawn, time_cases
from loadtest.gpu.shapes import MODELS
from loadtest.gpu.timing import Work
from penstock.model_config import ModelConfig
from penstock_kernels.triton.attention.paged import paged_attention
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, plan_attention
from penstock_kernels.triton.tiles import AttentionChoice, AttentionTiles, attention_choice

BLOCK = 16
COMPARED = 64
"""Queries of a prompt that are held against the reference."""
TORCH = "scaled_dot_product_attention"


def run(job: Job) -> None:
    time_cases(job, cases(job, MODELS[job.extent.kernels]))


def cases(job: Job, config: ModelConfig) -> Iterator[Case]:
    for each in job.extent.decode:
        yield decode(config, *each)
    for each in job.extent.chunks:
        yield chunk(config, *each)
    yield decode(config, *job.extent.decode[0], invariant=True)
    yield decode(config, *job.extent.decode[0], cache=torch.float8_e4m3fn)
    yield chunk(config, *job.extent.chunks[0], invariant=True)


def decode(
    config: ModelConfig,
    batch: int,
    context: int,
    *,
    invariant: bool = False,
    cache: torch.dtype = torch.bfloat16,
) -> Case:
    """context: with the new token."""
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    plain = not invariant and cache == torch.bfloat16
    suffix = ", batch-invariant" if invariant else ", fp8 KV" if not plain else ""
    shape = Shape(config, batch, context - 1, 1, invariant, cache)
    return Case(
        f"{batch} x {context}",
        shape.bench(_decode_by_torch if plain else None),
        f"decode attention{suffix}",
        size=decode_attention_bytes(batch, context, heads, kv_heads, dim, cache.itemsize),
        flops=4 * heads * dim * batch * context,
        torch=TORCH if plain else "",
    )


def chunk(
    config: ModelConfig, sequences: int, before: int, new: int, *, invariant: bool = False
) -> Case:
    """The last `new` tokens of prompts of which `before` are in the cache."""
    whole = before == 0 and not invariant
    return Case(
        f"{sequences} x {new}" + (f" after {before}" if before else ""),
        Shape(config, sequences, before, new, invariant).bench(_whole_by_torch if whole else None),
        f"prefill attention{', batch-invariant' if invariant else ''}",
        flops=sequences * attention_flops(config.num_heads, config.head_dim, before, new),
        torch=TORCH if whole else "",
    )


@dataclass(frozen=True)
class Shape:
    """Sequences that compute `new` tokens each behind `before` that are in the cache."""

    config: ModelConfig
    sequences: int
    before: int
    new: int
    invariant: bool = False
    cache: torch.dtype = torch.bfloat16

    def bench(
        self, by_torch: Callable[[Shape, Tensor, list[Tensor]], Work] | None
    ) -> Callable[[torch.device], Bench]:
        """by_torch: the query and the caches to torch's call for the same."""

        def make(device: torch.device) -> Bench:
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
                parts = rows.view(self.sequences, -1)
                return torch.cat(
                    [
                        attended(query[parts[each]], caches, tables[each], positions, scale)
                        for each in range(self.sequences)
                    ]
                )

            theirs = None if by_torch is None or device.type == "meta" else by_torch
            return Bench(
                work,
                reference,
                lambda result: result[rows],
                torch=None if theirs is None else theirs(self, query, caches),
            )

        return make

    def caches(self, device: torch.device) -> list[Tensor]:
        """Keys and values by token and then head, seen by head, as a worker has them."""
        config = self.config
        slots = self.sequences * -(-(self.before + self.new) // BLOCK) * BLOCK
        return [
            torch.randn(slots, config.num_kv_heads, config.head_dim, device=device)
            .to(self.cache)
            .transpose(0, 1)
            for _ in range(2)
        ]

    def plan(self, tiles: AttentionTiles | None, device: torch.device) -> DeviceAttentionPlan:
        """Every sequence's blocks lie scattered, as in a pool that has been used.  None: tiles as
        the worker has them."""
        choice = attention_choice(self.config.head_dim, batch_invariant=self.invariant)
        if tiles is not None:
            choice = AttentionChoice(tiles, tiles)
        length = self.before + self.new
        need = -(-length // BLOCK)
        blocks = np.random.default_rng(0).permutation(self.sequences * need)
        meta = device.type == "meta"
        plan = plan_attention(
            list(blocks.reshape(self.sequences, need)),
            np.full(self.sequences, self.new),
            np.full(self.sequences, length),
            block_size=BLOCK,
            group=self.config.num_heads // self.config.num_kv_heads,
            choice=choice,
            device=torch.device("cpu") if meta else device,
        )
        return weightless(plan, device) if meta else plan


def _decode_by_torch(shape: Shape, query: Tensor, caches: list[Tensor]) -> Work:
    """Over equal tensors, one sequence after the other: what torch would have without pages."""
    batch, context = shape.sequences, shape.before + 1
    alike = [each.transpose(0, 1)[: batch * context] for each in caches]
    key, value = (each.unflatten(0, (batch, context)).transpose(1, 2) for each in alike)
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


def weightless(plan: DeviceAttentionPlan, device: torch.device) -> DeviceAttentionPlan:
    """The plan with tensors that have shapes only, for compiling."""
    lists = {
        name: tiles
        and replace(tiles, sequences=tiles.sequences.to(device), firsts=tiles.firsts.to(device))
        for name, tiles in (("few", plan.few), ("many", plan.many))
    }
    names = ("tables", "query_starts", "query_lens", "seq_lens")
    return replace(plan, **{name: getattr(plan, name).to(device) for name in names}, **lists)
