"""Kernels that go row by row: norms, gates, rotation and cache write, sampling, block copies."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as functional
from torch import Tensor

from loadtest.gpu.job import Job
from loadtest.gpu.parts.cases import Case, time_cases
from loadtest.gpu.shapes import MODELS
from penstock.model_config import ModelConfig
from penstock_kernels.triton.attention import block_copies, rope_write
from penstock_kernels.triton.rowwise import gated, rms_norm
from penstock_kernels.triton.sampling import sample

BLOCK = 16
"""Tokens of a KV block."""


def run(job: Job) -> None:
    config = MODELS[job.extent.kernels]
    time_cases(job, cases(job, config))


def cases(job: Job, config: ModelConfig) -> Iterator[Case]:
    device = job.device
    for rows in job.extent.rows:
        yield from norms(rows, config, device)
        yield gate(rows, config, device)
        yield rotation(rows, config, device)
    yield from draws(job.extent.sampled_rows, config.vocab_size, device)
    yield copies(job.extent.copied_blocks, config, device)


def drawn(device: torch.device, *sizes: int) -> Tensor:
    return torch.randn(sizes, device=device).bfloat16()


def norms(rows: int, config: ModelConfig, device: torch.device) -> Iterator[Case]:
    size, eps = config.hidden_size, config.rms_norm_eps
    x, residual, weight = drawn(device, rows, size), drawn(device, rows, size), drawn(device, size)
    yield Case(
        "rms_norm",
        f"{rows} x {size}",
        lambda: rms_norm.rms_norm(x, weight, eps),
        size=2 * (2 * rows * size + size),
        torch="rms_norm",
        torch_work=lambda: functional.rms_norm(x, (size,), weight, eps),
    )
    yield Case(
        "add_rms_norm",
        f"{rows} x {size}",
        lambda: rms_norm.add_rms_norm(x, residual, weight, eps),
        size=2 * (4 * rows * size + size),
        torch="add, rms_norm",
        torch_work=lambda: functional.rms_norm(residual.add_(x), (size,), weight, eps),
    )


def gate(rows: int, config: ModelConfig, device: torch.device) -> Case:
    size = config.intermediate_size
    both = drawn(device, rows, 2 * size)
    return Case(
        "silu_mul",
        f"{rows} x {size}",
        lambda: gated.silu_mul(both),
        size=2 * 3 * rows * size,
        torch="silu, mul",
        torch_work=lambda: functional.silu(both[:, :size]) * both[:, size:],
    )


def rotation(rows: int, config: ModelConfig, device: torch.device) -> Case:
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    qkv = drawn(device, rows, heads + 2 * kv_heads, dim)
    query, key, value = qkv.split((heads, kv_heads, kv_heads), dim=1)
    angles = torch.rand(rows, dim // 2, device=device)
    cos, sin = angles.cos(), angles.sin()
    places = torch.arange(rows, device=device)
    caches = [drawn(device, rows, kv_heads, dim).transpose(0, 1) for _ in range(2)]

    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        wide = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
        return torch.cat(
            (first * wide[0] - second * wide[1], second * wide[0] + first * wide[1]), dim=-1
        )

    def by_torch() -> Tensor:
        caches[0].transpose(0, 1).index_copy_(0, places, turned(key))
        caches[1].transpose(0, 1).index_copy_(0, places, value)
        return turned(query)

    return Case(
        "rope_write",
        f"{rows} x ({heads} + 2 x {kv_heads}) x {dim}",
        lambda: rope_write.rope_write(query, key, value, cos, sin, places, places, *caches),
        size=rows * (2 * 2 * (heads + 2 * kv_heads) * dim + 4 * dim),
        torch="mul, cat, index_copy",
        torch_work=by_torch,
    )


def asking(
    rows: int, temperature: float, top_k: int, top_p: float, device: torch.device
) -> sample.SamplingRows:
    """Rows that ask for the same, each with a seed of its own."""

    def filled(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    return sample.SamplingRows(
        temperature=filled(temperature, torch.float64),
        top_k=filled(top_k, torch.int32),
        top_p=filled(top_p, torch.float64),
        min_p=filled(0.0, torch.float64),
        seed=torch.arange(rows, device=device),
        sequence=filled(0, torch.int64),
        token=filled(0, torch.int64),
    )


def draws(rows: int, vocab: int, device: torch.device) -> Iterator[Case]:
    logits = 4 * torch.randn(rows, vocab, device=device)
    kinds = (("likeliest", 0.0, 0, 1.0), ("drawn", 0.8, 0, 1.0), ("top-k, top-p", 0.8, 50, 0.95))
    for name, temperature, top_k, top_p in kinds:
        asked = asking(rows, temperature, top_k, top_p, device)
        yield Case(
            f"sample, {name}",
            f"{rows} x {vocab}",
            lambda asked=asked, cuts=top_p < 1.0: sample.sample_rows(logits, asked, cuts=cuts),
            size=4 * rows * vocab,
            torch={0.0: "argmax", 1.0: "softmax, multinomial"}.get(
                temperature if temperature == 0.0 else top_p, "sort, softmax, multinomial"
            ),
            torch_work=lambda t=temperature, k=top_k, p=top_p: by_torch(logits, t, k, p),
        )


def by_torch(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """The usual way of sampling in torch: a full sort where something is cut off."""
    if temperature == 0.0:
        return logits.argmax(-1)
    scaled = logits / temperature
    if top_p == 1.0:
        return torch.multinomial(scaled.softmax(-1), 1)
    ordered, ids = scaled.sort(dim=-1, descending=True)
    ordered[:, top_k:] = float("-inf")
    weights = ordered.softmax(-1)
    weights.masked_fill_(weights.cumsum(-1) - weights > top_p, 0.0)
    return ids.gather(1, torch.multinomial(weights, 1))


def copies(count: int, config: ModelConfig, device: torch.device) -> Case:
    """Of blocks within the pool, over all layers: half of them onto the other half."""
    parts = 2 * config.num_layers
    width = BLOCK * config.num_kv_heads * config.head_dim
    blocks = drawn(device, parts, 2 * count, width)
    sources, targets = list(range(count)), list(range(count, 2 * count))
    return Case(
        "copy_blocks",
        f"{count} of {BLOCK} tokens",
        lambda: block_copies.copy_blocks(blocks, sources, targets),
        size=2 * 2 * parts * count * width,
        torch="index copy",
        torch_work=lambda: by_index(blocks, count),
        capturable=False,  # It sends block numbers from the host.
    )


def by_index(blocks: Tensor, count: int) -> None:
    places = torch.arange(count, device=blocks.device)
    blocks[:, places + count] = blocks[:, places]
