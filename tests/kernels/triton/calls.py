"""A call of each op in the shapes of Llama-3.1-8B and Qwen3-0.6B, for the compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from penstock_kernels.triton import shared_memory, tiles
from penstock_kernels.triton.attention import block_copies, encoder, paged, rope_write
from penstock_kernels.triton.attention import plan as plans
from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.linear import (
    dense,
    dequantise,
    fp8_blocks,
    fp8_linear,
    gguf_linear,
    gguf_rows,
    gguf_weights,
    per_head,
    weight_only,
)
from penstock_kernels.triton.rowwise import (
    activation,
    as_large,
    norms,
    pool_rows,
    rank_sum,
)
from penstock_kernels.triton.sampling import adjustments, argmax, log_probs, sample
from tests.kernels.triton.calls_of_adapters import ADAPTER_CALLS
from tests.kernels.triton.calls_of_experts import EXPERT_CALLS
from tests.kernels.triton.calls_of_recurrences import RECURRENT_CALLS

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
CPU = torch.device("cpu")


def rows(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(sizes).to(dtype)


def normalisations() -> None:
    norms.rms_norm(rows(2, 4096), rows(4096), 1e-5)
    norms.add_rms_norm(rows(2, 1024), rows(2, 1024), rows(1024), 1e-5)


def gates() -> None:
    activation.silu_mul(rows(2, 2 * 14336))
    for kind in activation.GATED_KINDS:
        activation.gated(rows(2, 2 * 1024), kind)
    for kind in ("silu", "gelu", "gelu_tanh", "relu2"):
        activation.activate(rows(2, 1024), kind)
    activation.sparse_gate(rows(2, 2 * 16384), 0.95)
    as_large.as_large(rows(2, 2048), rows(2, 2048), 1e-5)
    norms.layer_norm(rows(2, 1024), rows(1024), None, 1e-5)


def rank_sums() -> None:
    for ranks in (2, 3, 4, 8):
        rank_sum.rank_sum(rows(ranks, 2, 4096))
    rank_sum.rank_sum(rows(2, 2, 4096, dtype=torch.float32))


def scales() -> KVScales:
    return KVScales.of(rows(8, dtype=torch.float32), rows(8, dtype=torch.float32))


def rotary(
    cache: torch.dtype = BF16,
    *,
    norm: bool = False,
    dims: int = 128,
    grows: bool = False,
    scaled: bool = False,
) -> None:
    """dims: of a head, how many numbers rotate; 0: none."""
    qkv = rows(2, 48, 128)
    table = rows(64, dims // 2, dtype=torch.float32)
    growth = rows(64, dtype=torch.float32) if grows else None
    places = torch.zeros(2, dtype=torch.int64)
    caches = rows(64, 8, 128, dtype=cache).transpose(0, 1), rows(64, 8, 128, dtype=cache)
    rope_write.rope_write(
        qkv[:, :32],
        qkv[:, 32:40],
        qkv[:, 40:],
        rope_write.RotaryTables(table, table, places, growth) if dims else None,
        places,
        caches[0],
        caches[1].transpose(0, 1),
        norms=rope_write.QueryKeyNorms(rows(128), rows(128), 1e-6) if norm else None,
        scales=scales() if scaled else None,
    )


def attend(
    head_dim: int = 128,
    cache: torch.dtype = BF16,
    variant: paged.Variant = paged.FULL,
    *,
    dtype: torch.dtype = BF16,
    group: int = 4,
    invariant: bool = False,
    sinks: bool = False,
    spans: bool = False,
    scaled: bool = False,
) -> None:
    shared = shared_memory.shared_memory(CPU)
    choice = tiles.attention_choice(head_dim, dtype, batch_invariant=invariant, shared=shared)
    plan = plans.plan_attention(
        [np.arange(64), np.arange(64)],
        np.array([1, 100]),
        np.array([1000, 1000]),
        block_size=16,
        group=group,
        choice=choice,
        device=CPU,
        last_seen=np.full(101, 999) if spans else None,
    )
    caches = [rows(8, 1024, head_dim, dtype=cache) for _ in range(2)]
    paged.paged_attention(
        rows(101, 8 * group, head_dim, dtype=dtype),
        *caches,
        plan,
        head_dim**-0.5,
        variant=variant,
        scales=scales() if scaled else None,
        sinks=rows(8 * group, dtype=torch.float32) if sinks else None,
    )


def latents(dtype: torch.dtype = BF16, *, heads: int = 128, invariant: bool = False) -> None:
    """In the shapes of DeepSeek-V3."""
    shared = shared_memory.shared_memory(CPU)
    choice = tiles.latent_choice(576, dtype, batch_invariant=invariant, shared=shared)
    plan = plans.plan_attention(
        [np.arange(64), np.arange(64)],
        np.array([1, 100]),
        np.array([1000, 1000]),
        block_size=16,
        group=tiles.latent_group(heads, choice),
        choice=choice,
        device=CPU,
    )
    keys = rows(1024, 1, 576, dtype=dtype)
    table, places = rows(64, 32, dtype=torch.float32), torch.zeros(101, dtype=torch.int64)
    query = rope_write.rope_write(
        rows(101, heads, 576, dtype=dtype),
        keys[:101],
        None,
        rope_write.RotaryTables(table, table, places),
        places,
        keys.transpose(0, 1),
        keys.transpose(0, 1),
    )
    cache = keys.transpose(0, 1)
    paged.paged_attention(query, cache, cache, plan, 0.1, turning=64)
    for count in (1, 2):
        per_head.per_head(
            rows(count, heads, 192, dtype=dtype)[..., 64:], rows(heads, 512, 128, dtype=dtype)
        )


def encode(size: int, heads: int, dtype: torch.dtype = BF16, *, bias: bool = False) -> None:
    """An encoder's own kernels. size: of its hidden state."""
    dim = size // heads
    shape = tiles.encoder_tiles(dim, dtype)
    planned = map(torch.from_numpy, encoder.plan_inputs([40, 9], shape))
    plan = encoder.InputPlan(shape, *planned)
    table = rows(heads, 1023, dtype=dtype) if bias else None
    query, key, value = rows(49, 3, heads, dim, dtype=dtype).unbind(1)
    encoder.encoder_attention(query, key, value, plan, table)
    hidden, gain = rows(49, size, dtype=dtype), rows(size, dtype=dtype)
    norms.layer_norm(hidden, gain, gain, 1e-12)
    norms.add_layer_norm(hidden, hidden, gain, gain, 1e-12)
    for kind in activation.KINDS:
        activation.activate(hidden, kind)
    for pool in (pool_rows.mean_rows, pool_rows.max_rows):
        pool(hidden, plan.starts, plan.lengths)


def look_within(dim: int, heads: int, kv_heads: int, dtype: torch.dtype = BF16) -> None:
    """Attention of encoders with a decoder's layers: in a window, back only, and both with a
    cap."""
    shape = tiles.encoder_tiles(dim, dtype)
    planned = map(torch.from_numpy, encoder.plan_inputs([40, 9], shape))
    plan = encoder.InputPlan(shape, *planned)
    query = rows(49, heads, dim, dtype=dtype)
    key, value = rows(49, 2, kv_heads, dim, dtype=dtype).unbind(1)
    for variant in (
        encoder.InputVariant(window=65),
        encoder.InputVariant(causal=True),
        encoder.InputVariant(window=65, causal=True, soft_cap=50.0),
    ):
        encoder.encoder_attention(query, key, value, plan, variant=variant)


VOCAB = 128256


def logits() -> None:
    row, half = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int32)
    number = torch.zeros(2, dtype=torch.int64)
    raw = rows(2, VOCAB, dtype=torch.float32)
    seen = torch.zeros(2, VOCAB, dtype=torch.int32)
    masks = torch.zeros(2, VOCAB // 32, dtype=torch.int32)
    biases = torch.zeros(3, dtype=torch.int32), half, row
    adjustments.adjust_rows(
        raw, adjustments.DeviceRowAdjustments(*biases, seen, half, row, row, row, masks, half)
    )
    adjustments.count_tokens(seen, half, number)
    asked = sample.SamplingRows(row, half, row, row, number, number, number)
    for holes in (False, True):
        for cuts in (False, True):
            sample.sample_rows(raw, asked, holes=holes, cuts=cuts)
        argmax.argmax(raw, holes=holes)
    for count in (0, 1, 20):
        log_probs.log_probs(raw, number, count)
    sample.uniform(number, number, number)


def copies() -> None:
    blocks = rows(8, 64, 2048)
    block_copies.copy_blocks(rows(1, 64, 2048), [0], [1])
    block_copies.copy_blocks(blocks, [0, 2], [1, 3])
    block_copies.gather_blocks(blocks, [0, 2], rows(2, 8, 2048))


def products(dtype: torch.dtype = BF16) -> None:
    """Few rows, of which 1 is a constant to Triton; of a wide matrix; more, and many. Then with a
    matrix that is wide enough to be the left operand, each of the tiles for more rows."""
    for count, outputs in (
        (1, 6144),
        (2, 6144),
        (2, 28672),
        (256, 4096),
        (512, 4096),
        (2048, 6144),
    ):
        x, weight = rows(count, 4096, dtype=dtype), rows(outputs, 4096, dtype=dtype)
        dense.linear(x, weight)
        dense.linear(x, weight, dtype=torch.float32)
    wide = rows(8192, 4096, dtype=dtype)
    for count in (32, 64, 128, 256, 1024):
        dense.linear(rows(count, 4096, dtype=dtype), wide)


def quantised(bits: int, group: int) -> None:
    packed = weight_only.pack(rows(256, 4096), bits=bits, group=group)
    for count in (1, 2, 64):
        weight_only.weight_only_linear(rows(count, 4096), packed)
    if bits == 4:
        weight_only.weight_only_linear(rows(2, 4096, dtype=torch.float16), packed)
        zeroed = replace(packed, zeros=torch.zeros_like(packed.scales))
        weight_only.weight_only_linear(rows(2, 4096), zeroed)
    dequantise.dequantise(packed, BF16)


def gguf_call(layout: gguf_weights.Layout) -> None:
    """Few rows, with a sum in parts; and many."""
    weights = gguf_weights.empty(layout, 4096, 14336, CPU)
    gguf_linear.gguf_linear(rows(2, 14336), weights)
    gguf_linear.gguf_linear(rows(130, 14336), weights)
    gguf_linear.gguf_linear(rows(2, 14336), weights, batch_invariant=True)
    for ids in (torch.zeros(2, dtype=torch.int64), None):
        gguf_rows.gguf_rows(weights, ids, BF16)


def fp8() -> None:
    scales = rows(256, dtype=torch.float32)
    for count in (1, 2):
        fp8_linear.fp8_linear(rows(count, 4096), rows(256, 4096, dtype=FP8), scales)
        groups = rows(256, 32, dtype=torch.float32)
        fp8_blocks.fp8_block_linear(rows(count, 4096), rows(256, 4096, dtype=FP8), groups)


CALLS: dict[str, Callable[[], object]] = {
    "norms": normalisations,
    "gates": gates,
    **EXPERT_CALLS,
    **RECURRENT_CALLS,
    "rank-sums": rank_sums,
    "rotary": rotary,
    "rotary-fp8": partial(rotary, FP8, norm=True, scaled=True),
    "rotary-in-part": partial(rotary, norm=True, dims=64),
    "rotary-grown": partial(rotary, grows=True),
    "no-rotation": partial(rotary, dims=0),
    "attention": attend,
    "attention-sinks": partial(attend, variant=paged.Variant(window=128), sinks=True),
    "attention-fp8": partial(attend, cache=FP8),
    "attention-fp8-scaled": partial(attend, cache=FP8, scaled=True),
    "attention-invariant": partial(attend, invariant=True),
    "attention-invariant-256": partial(attend, 256, invariant=True),
    "attention-float32": partial(attend, 64, torch.float32, dtype=torch.float32),
    "attention-window": partial(attend, variant=paged.Variant(window=1024, soft_cap=50.0)),
    "attention-chunks": partial(attend, variant=paged.Variant(chunk=8192)),
    "attention-spans": partial(attend, spans=True),
    "attention-spans-256": partial(attend, 256, variant=paged.Variant(window=1024), spans=True),
    "latents": latents,
    "latents-invariant": partial(latents, heads=16, invariant=True),
    "latents-float32": partial(latents, torch.float32, heads=20),
    "attention-64": partial(attend, 64, group=3),
    "attention-96": partial(attend, 96, group=1),
    "attention-256": partial(attend, 256, group=8),
    "attention-512": partial(attend, 512, group=8),
    "encoder": partial(encode, 384, 12),
    "encoder-float32": partial(encode, 768, 12, torch.float32, bias=True),
    "encoder-128-float32": partial(encode, 1024, 8, torch.float32),
    "encoder-256": partial(encode, 1024, 4, torch.float16, bias=True),
    "encoder-within": partial(look_within, 64, 12, 12),
    "encoder-within-256": partial(look_within, 256, 3, 1),
    "encoder-within-float32": partial(look_within, 64, 12, 12, torch.float32),
    "logits": logits,
    "copies": copies,
    **ADAPTER_CALLS,
    "linear": products,
    "linear-float32": partial(products, torch.float32),
    "int8-32": partial(quantised, 8, 32),
    "int8-128": partial(quantised, 8, 128),
    "int4-32": partial(quantised, 4, 32),
    "int4-128": partial(quantised, 4, 128),
    "fp8": fp8,
    **{
        f"gguf-{name}": partial(gguf_call, layout)
        for name, layout in {
            "q4_1": gguf_weights.Layout(4, minima=True),
            "q5_0": gguf_weights.Layout(5, offset=16),
            "q8_0": gguf_weights.Layout(8),
            "q2_k": gguf_weights.Layout(4, group=16, minima=True, factors="uint8"),
            "q3_k": gguf_weights.Layout(4, offset=4, group=16, factors="int8"),
            "q4_k": gguf_weights.Layout(4, minima=True, factors="uint8"),
            "q6_k": gguf_weights.Layout(6, offset=32, group=16, factors="int8"),
            "iq4_xs": gguf_weights.Layout(8, factors="int8"),
            "mxfp4": gguf_weights.Layout(4, e2m1=True, factors="uint8", unit=0),
            "nvfp4": gguf_weights.Layout(
                4, e2m1=True, group=16, factors="uint8", unit=14336, unit_dtype="float32"
            ),
        }.items()
    },
}
