"""Paged attention, of decode steps and of prompts, beside torch's own over contiguous tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from loadtest.gpu.cost import attention_flops, decode_attention_bytes
from loadtest.gpu.job import Job
from loadtest.gpu.parts.cases import Case, time_cases
from loadtest.gpu.shapes import MODELS
from penstock.model_config import ModelConfig
from penstock_kernels.triton.attention.paged import paged_attention
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, plan_attention
from penstock_kernels.triton.tiles import AttentionChoice, attention_choice

BLOCK = 16


def run(job: Job) -> None:
    time_cases(job, cases(job, MODELS[job.extent.kernels]))


def cases(job: Job, config: ModelConfig) -> Iterator[Case]:
    for batch, context in job.extent.decode:
        yield decode(batch, context, config, job.device)
    for sequences, before, new in job.extent.chunks:
        yield chunk(sequences, before, new, config, job.device)
    batch, context = job.extent.decode[0]
    yield decode(batch, context, config, job.device, invariant=True)
    yield decode(batch, context, config, job.device, cache=torch.float8_e4m3fn)
    sequences, before, new = job.extent.chunks[0]
    yield chunk(sequences, before, new, config, job.device, invariant=True)


def layout(
    sequences: int,
    before: int,
    new: int,
    config: ModelConfig,
    device: torch.device,
    choice: AttentionChoice,
) -> DeviceAttentionPlan:
    """Every sequence's blocks lie scattered, as in a pool that has been used."""
    need = -(-(before + new) // BLOCK)
    tables = np.random.default_rng(0).permutation(sequences * need).reshape(sequences, need)
    return plan_attention(
        list(tables),
        np.full(sequences, new),
        np.full(sequences, before + new),
        block_size=BLOCK,
        group=config.num_heads // config.num_kv_heads,
        choice=choice,
        device=device,
    )


def pool(
    sequences: int, tokens: int, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> list[Tensor]:
    """Keys and values by token and then head, seen by head, as a worker has them."""
    slots = sequences * -(-tokens // BLOCK) * BLOCK
    return [
        torch.randn(slots, config.num_kv_heads, config.head_dim, device=device)
        .to(dtype)
        .transpose(0, 1)
        for _ in range(2)
    ]


def decode(
    batch: int,
    context: int,
    config: ModelConfig,
    device: torch.device,
    *,
    invariant: bool = False,
    cache: torch.dtype = torch.bfloat16,
) -> Case:
    """context: with the new token."""
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    choice = attention_choice(config.head_dim, batch_invariant=invariant)
    plan = layout(batch, context - 1, 1, config, device, choice)
    caches = pool(batch, context, config, device, cache)
    query = torch.randn(batch, heads, dim, device=device).bfloat16()
    plain = not invariant and cache == torch.bfloat16
    # Equal tensors, one sequence after the other: what torch would have without pages.
    alike = [each.transpose(0, 1)[: batch * context] for each in caches] if plain else []
    key, value = [t.unflatten(0, (batch, context)).transpose(1, 2) for t in alike] or [None] * 2

    def by_torch() -> Tensor:
        return functional.scaled_dot_product_attention(
            query[:, :, None], key, value, enable_gqa=True
        )

    suffix = ", batch-invariant" if invariant else ", fp8 KV" if not plain else ""
    return Case(
        f"decode attention{suffix}",
        f"{batch} x {context}",
        lambda: paged_attention(query, *caches, plan, dim**-0.5),
        size=decode_attention_bytes(batch, context, heads, kv_heads, dim, caches[0].itemsize),
        flops=4 * heads * dim * batch * context,
        torch="scaled_dot_product_attention" if plain else "",
        torch_work=by_torch if plain else None,
    )


def chunk(
    sequences: int,
    before: int,
    new: int,
    config: ModelConfig,
    device: torch.device,
    *,
    invariant: bool = False,
) -> Case:
    heads, dim = config.num_heads, config.head_dim
    choice = attention_choice(config.head_dim, batch_invariant=invariant)
    plan = layout(sequences, before, new, config, device, choice)
    caches = pool(sequences, before + new, config, device, torch.bfloat16)
    query = torch.randn(sequences * new, heads, dim, device=device).bfloat16()
    whole = before == 0 and not invariant
    q, k, v = (
        torch.randn(sequences, count, new, dim, device=device).bfloat16()
        for count in (heads, config.num_kv_heads, config.num_kv_heads)
    )
    shape = f"{sequences} x {new}" + (f" after {before}" if before else "")
    return Case(
        f"prefill attention{', batch-invariant' if invariant else ''}",
        shape,
        lambda: paged_attention(query, *caches, plan, dim**-0.5),
        flops=sequences * attention_flops(heads, dim, before, new),
        torch="scaled_dot_product_attention" if whole else "",
        torch_work=(
            lambda: functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True
            )
        )
        if whole
        else None,
    )
