"""What the package of FlashAttention 3 has, in plain torch: slow, and as its documentation says.

It has the public function's names and defaults, refuses what that refuses, and reads pages by their
strides.  Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

calls: list[dict[str, Any]] = []
"""What was passed by name, but tensors by their shapes."""


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """Attends with queries that follow one another, [rows, heads, size], over a paged cache. Rows
    of a sequence without keys are 0."""
    if page_table is None or cu_seqlens_q is None or cache_seqlens is None or max_seqlen_q is None:
        raise NotImplementedError("only queries of unequal lengths over pages are stood in for")
    _check(q, k_cache, v_cache, page_table, cu_seqlens_q, cache_seqlens)
    named = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size}
    shapes = {"rows": len(q), "sequences": len(cache_seqlens), "max_seqlen_q": max_seqlen_q}
    calls.append({**named, **shapes, "softcap": softcap, "num_splits": num_splits})
    rows = torch.arange(len(q), device=q.device)
    sequence = torch.searchsorted(cu_seqlens_q[1:].long().contiguous(), rows, right=True)
    starts, lengths = cu_seqlens_q[:-1].long()[sequence], cache_seqlens.long()[sequence]
    new = cu_seqlens_q[1:].long()[sequence] - starts
    # [rows, 1]: the key that stands at a query's own place.
    own = (rows - starts + lengths - new)[:, None]
    keys = torch.arange(page_table.shape[1] * k_cache.shape[1], device=q.device)
    seen = keys < lengths[:, None]
    left, right = window_size
    if causal:
        right = 0
    if right >= 0:
        seen = seen & (keys <= own + right)
    if left >= 0:
        seen = seen & (keys >= own - left)
    tables = page_table.long()[sequence]
    group = q.shape[1] // k_cache.shape[2]
    # [rows, keys, heads, size]
    gathered = (each[tables].flatten(1, 2).float() for each in (k_cache, v_cache))
    many_keys, many_values = (each.repeat_interleave(group, 2) for each in gathered)
    scores = torch.einsum("rhd,rthd->rht", q.float(), many_keys)
    scores = scores * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = ~seen
    weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
    weights = weights.masked_fill(hidden[:, None], 0.0)
    values = many_values.masked_fill(hidden[:, :, None, None], 0.0)
    return torch.einsum("rht,rthd->rhd", weights, values).to(q.dtype)


def _check(
    q: Tensor, k: Tensor, v: Tensor, page_table: Tensor, cu_seqlens_q: Tensor, seqlens: Tensor
) -> None:
    if q.dtype not in (torch.bfloat16, torch.float16) or not q.dtype == k.dtype == v.dtype:
        raise RuntimeError(f"query, key and value are {q.dtype}, {k.dtype} and {v.dtype}")
    if q.shape[-1] > 256 or q.shape[-1] % 8:
        raise RuntimeError(f"the head size is {q.shape[-1]}")
    if any(each.stride(-1) != 1 for each in (q, k, v, page_table)):
        raise RuntimeError("the last dimension isn't contiguous")
    # What is loaded at once are 16 bytes.
    if any(stride % 8 for each in (q, k, v) for stride in each.stride()[:-1]):
        raise RuntimeError("heads don't begin on 16 bytes")
    if any(each.dtype != torch.int32 for each in (page_table, cu_seqlens_q, seqlens)):
        raise RuntimeError("page table and lengths must be int32")
    if not cu_seqlens_q.is_contiguous() or not seqlens.is_contiguous():
        raise RuntimeError("lengths must be contiguous")
    if k.shape != v.shape or q.shape[1] % k.shape[2]:
        raise RuntimeError(f"{q.shape[1]} query heads, keys {k.shape} and values {v.shape}")
    if not len(cu_seqlens_q) - 1 == len(seqlens) == len(page_table):
        raise RuntimeError("numbers of sequences differ")


@contextmanager
def counted() -> Iterator[list[dict[str, Any]]]:
    """The calls while it is open."""
    calls.clear()
    yield calls
