"""Kernels that go row by row: norms, gates, rotation and cache write, sampling, block copies."""

from __future__ import annotations

from dataclasses import asdict

import torch
import torch.nn.functional as functional
from torch import Tensor

from loadtest.gpu.parts.cases import Bench, Case, Tiles, drawn
from loadtest.gpu.timing import Work
from penstock.model.config import ModelConfig
from penstock_kernels import reference
from penstock_kernels.reference.sampling import SamplingCuts
from penstock_kernels.triton.attention import block_copies, rope_write
from penstock_kernels.triton.rowwise import activation, norms
from penstock_kernels.triton.sampling import sample
from penstock_kernels.triton.tiles import PartTiles

BLOCK = 16
"""Tokens of a KV block."""
COMPARED = 16
"""Drawn rows that are held against the reference, on the host."""
DRAWS = {
    "likeliest": (SamplingCuts(0.0, 0, 1.0), "argmax"),
    "drawn": (SamplingCuts(0.8, 0, 1.0), "softmax, multinomial"),
    "top-k, top-p": (SamplingCuts(0.8, 50, 0.95), "sort, softmax, multinomial"),
}
"""What is asked for, and torch's way to it."""


def chosen(tiles: Tiles) -> dict[str, int]:
    """The tiles as keywords; none where the kernel chooses."""
    return {} if tiles is None else asdict(tiles)


def norm(config: ModelConfig, rows: int) -> Case:
    size, eps = config.hidden_size, config.norm.eps

    def make(device: torch.device) -> Bench:
        x, weight = drawn(device, rows, size), drawn(device, size)
        return Bench(
            lambda tiles: lambda: norms.rms_norm(x, weight, eps, **chosen(tiles)),
            lambda: functional.rms_norm(x.float(), (size,), weight.float(), eps),
            torch=lambda: functional.rms_norm(x, (size,), weight, eps),
        )

    least = 2 * (2 * rows * size + size)
    return Case(f"{rows} x {size}", make, "rms_norm", size=least, torch="rms_norm")


def add_norm(config: ModelConfig, rows: int) -> Case:
    size, eps = config.hidden_size, config.norm.eps

    def make(device: torch.device) -> Bench:
        x, residual = drawn(device, rows, size), drawn(device, rows, size)
        weight = drawn(device, size)
        return Bench(
            lambda _: lambda: norms.add_rms_norm(x, residual, weight, eps),
            torch=lambda: functional.rms_norm(residual.add_(x), (size,), weight, eps),
        )

    least = 2 * (4 * rows * size + size)
    return Case(f"{rows} x {size}", make, "add_rms_norm", size=least, torch="add, rms_norm")


def gate(config: ModelConfig, rows: int) -> Case:
    size = config.intermediate_size

    def make(device: torch.device) -> Bench:
        both = drawn(device, rows, 2 * size)
        return Bench(
            lambda tiles: lambda: activation.silu_mul(both, **chosen(tiles)),
            lambda: functional.silu(both[:, :size].float()) * both[:, size:].float(),
            torch=lambda: functional.silu(both[:, :size]) * both[:, size:],
        )

    least = 2 * 3 * rows * size
    return Case(f"{rows} x {size}", make, "silu_mul", size=least, torch="silu, mul")


def rotation(config: ModelConfig, rows: int) -> Case:
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim

    def make(device: torch.device) -> Bench:
        qkv = drawn(device, rows, heads + 2 * kv_heads, dim)
        query, key, value = qkv.split((heads, kv_heads, kv_heads), dim=1)
        angles = torch.rand(rows, dim // 2, device=device)
        cos, sin = angles.cos(), angles.sin()
        places = torch.arange(rows, device=device)
        tables = rope_write.RotaryTables(cos, sin, places)
        caches = [drawn(device, kv_heads, rows, dim) for _ in range(2)]

        def turned(x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            c, s = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
            return torch.cat((first * c - second * s, second * c + first * s), dim=-1)

        def by_torch() -> Tensor:
            caches[0].transpose(0, 1).index_copy_(0, places, turned(key))
            caches[1].transpose(0, 1).index_copy_(0, places, value)
            return turned(query)

        return Bench(
            lambda _: lambda: rope_write.rope_write(query, key, value, tables, places, *caches),
            torch=by_torch,
        )

    return Case(
        f"{rows} x ({heads} + 2 x {kv_heads}) x {dim}",
        make,
        "rope_write",
        size=rows * (2 * 2 * (heads + 2 * kv_heads) * dim + 4 * dim),
        torch="mul, cat, index_copy",
    )


def asking(rows: int, cuts: SamplingCuts, device: torch.device) -> sample.SamplingRows:
    """Rows that ask for the same, each with a seed of its own."""

    def filled(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    return sample.SamplingRows(
        temperature=filled(cuts.temperature, torch.float64),
        top_k=filled(cuts.top_k, torch.int32),
        top_p=filled(cuts.top_p, torch.float64),
        min_p=filled(0.0, torch.float64),
        seed=torch.arange(rows, device=device),
        sequence=filled(0, torch.int64),
        token=filled(0, torch.int64),
    )


def draw(config: ModelConfig, rows: int, kind: str) -> Case:
    """kind: of DRAWS."""
    vocab = config.vocab_size
    cuts, torchs = DRAWS[kind]

    def make(device: torch.device) -> Bench:
        logits = 4 * torch.randn(rows, vocab, device=device)
        asked = asking(rows, cuts, device)

        def work(tiles: PartTiles | None) -> Work:
            own = {} if tiles is None else {"tiles": tiles}
            return lambda: sample.sample_rows(logits, asked, cuts=cuts.top_p < 1.0, **own)

        return Bench(
            work,
            lambda: drawn_tokens(logits[:COMPARED].cpu(), cuts).to(device),
            lambda tokens: tokens[:COMPARED],
            exact=True,
            torch=lambda: by_torch(logits, cuts),
        )

    return Case(f"{rows} x {vocab}", make, f"sample, {kind}", size=4 * rows * vocab, torch=torchs)


def drawn_tokens(logits: Tensor, cuts: SamplingCuts) -> Tensor:
    """What the reference draws, on the host."""
    rows = len(logits)
    draws = reference.uniform(list(range(rows)), [0] * rows, [0] * rows)
    pairs = zip(logits, draws, strict=True)
    return torch.tensor([reference.sample_row(row, cuts, draw) for row, draw in pairs])


def by_torch(logits: Tensor, cuts: SamplingCuts) -> Tensor:
    """The usual way of sampling in torch: a full sort where something is cut off."""
    if cuts.temperature == 0.0:
        return logits.argmax(-1)
    scaled = logits / cuts.temperature
    if cuts.top_p == 1.0:
        return torch.multinomial(scaled.softmax(-1), 1)
    ordered, ids = scaled.sort(dim=-1, descending=True)
    ordered[:, cuts.top_k :] = float("-inf")
    weights = ordered.softmax(-1)
    weights.masked_fill_(weights.cumsum(-1) - weights > cuts.top_p, 0.0)
    return ids.gather(1, torch.multinomial(weights, 1))


def copies(config: ModelConfig, count: int) -> Case:
    """Copies of blocks within the pool, over all layers: half of them onto the other half."""
    parts = 2 * config.num_layers
    width = BLOCK * config.num_kv_heads * config.head_dim

    def make(device: torch.device) -> Bench:
        blocks = drawn(device, parts, 2 * count, width)
        sources, targets = list(range(count)), list(range(count, 2 * count))

        def by_index() -> None:
            places = torch.arange(count, device=device)
            blocks[:, places + count] = blocks[:, places]

        return Bench(
            lambda _: lambda: block_copies.copy_blocks(blocks, sources, targets), torch=by_index
        )

    return Case(
        f"{count} of {BLOCK} tokens",
        make,
        "copy_blocks",
        size=2 * 2 * parts * count * width,
        torch="index copy",
        capturable=False,  # It sends block numbers from the host.
    )
