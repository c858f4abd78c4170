"""Long chunks' attention by FlashAttention 3 (Shah et al., 2024), over the cache as it lies.

The library's interface takes a cache of pages, [pages, page size, heads, head size], of any strides
but the last: so a view of a layer's keys and values does, and nothing is copied.  It computes the
sequences with many new tokens of a step that isn't a CUDA graph; the others keep their own
kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from penstock_kernels.triton.attention.plan import DeviceAttentionPlan
from penstock_worker.attention.interface import ScoreRule
from penstock_worker.attention.triton_encoded import LayerCache


class Kernel(Protocol):
    """The part of the library's `flash_attn_with_kvcache` that is used."""

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        cache_seqlens: Tensor,
        page_table: Tensor,
        cu_seqlens_q: Tensor,
        max_seqlen_q: int,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
        softcap: float,
        num_splits: int,
    ) -> Tensor: ...


ARGUMENTS = (
    "cache_seqlens",
    "page_table",
    "cu_seqlens_q",
    "max_seqlen_q",
    "softmax_scale",
    "causal",
    "window_size",
    "softcap",
    "num_splits",
)
"""Arguments of `Kernel` that are passed by name."""
EVERYTHING = (-1, -1)
"""A `window_size` without bounds: the keys before a query's own that it sees, and those after
it."""
ONE_SPLIT = 1
"""A chunk has programs enough; and sums don't depend on how many others there are."""


@dataclass(frozen=True)
class LongChunks:
    """What the host knows of a step with long chunks."""

    rows: int
    """Rows of all sequences."""
    longest: int
    """Most new tokens of a sequence."""


@dataclass(frozen=True)
class FlashAttention:
    """The library, for some of a model's layers."""

    kernel: Kernel
    name: str
    """Name of the library, with its version."""
    layers: frozenset[int]
    """Layers that it computes, counted from the rank's first one."""

    def step(self, chunks: LongChunks, plan: DeviceAttentionPlan) -> FlashStep:
        """`plan`: of the step, with any group's tables. Queues three small operations."""
        long = plan.query_lens > plan.choice.split_queries
        return FlashStep(
            self,
            chunks,
            torch.nn.functional.pad(plan.query_starts, (0, 1), value=chunks.rows),
            # Of the others, the library computes nothing: it gives zeros where there are no keys.
            plan.seq_lens * long,
        )


@dataclass(frozen=True)
class FlashStep:
    """A step with long chunks."""

    library: FlashAttention
    chunks: LongChunks
    starts: Tensor
    """[sequences + 1] int32: each one's first row, and the end of the last."""
    lengths: Tensor
    """[sequences] int32: all tokens; 0 of sequences with few new ones."""

    def serves(self, layer: int) -> bool:
        return layer in self.library.layers

    def attend(
        self,
        query: Tensor,
        cache: LayerCache,
        plan: DeviceAttentionPlan,
        scale: float,
        rule: ScoreRule,
        few: Callable[[Tensor, DeviceAttentionPlan], object],
    ) -> Tensor:
        """Returns what StepAttention.attend returns. `few`: writes the rows of sequences with few
        new tokens into a result, by the plan of these alone."""
        rows = self.chunks.rows
        out = self.long(query[:rows], cache, plan, scale, rule)
        if plan.few is not None:
            few(out, replace(plan, many=None))
        if rows < len(query):
            out = torch.nn.functional.pad(out, (0, 0, 0, 0, 0, len(query) - rows))
        return out

    def long(
        self,
        query: Tensor,
        cache: LayerCache,
        plan: DeviceAttentionPlan,
        scale: float,
        rule: ScoreRule,
    ) -> Tensor:
        """Returns [rows, heads, head size], of which the rows of long chunks are of worth."""
        return self.library.kernel(
            query,
            pages(cache.keys, plan.block_size),
            pages(cache.values, plan.block_size),
            cache_seqlens=self.lengths,
            page_table=plan.tables,
            cu_seqlens_q=self.starts,
            max_seqlen_q=self.chunks.longest,
            softmax_scale=scale,
            causal=True,
            window_size=EVERYTHING if rule.window is None else (rule.window - 1, 0),
            softcap=rule.soft_cap or 0.0,
            num_splits=ONE_SPLIT,
        )


def pages(cache: Tensor, block_size: int) -> Tensor:
    """Returns a view of keys or values, [kv_heads, slots, head size], as [blocks, block size,
    kv_heads, head size]."""
    return cache.unflatten(1, (-1, block_size)).permute(1, 2, 0, 3)
