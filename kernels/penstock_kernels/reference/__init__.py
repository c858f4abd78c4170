"""Batch-invariant operations in plain torch, on the CPU.

Promise: a row's result is a function of that row alone, bit for bit. It doesn't depend on how many
rows there are, on what the others contain, or on the row's position among them. Three habits ensure
this, on one machine with one version of torch and one torch thread count:

- matrix products and row reductions run on tiles of one fixed row count (`tiling.ROW_TILE`),
  because BLAS and torch choose their order of summation by shape;
- attention splits the keys by token position, in fixed splits that are combined in order;
- everything else is element-wise and consists of operations that IEEE 754 rounds exactly, or of
  `torch.exp`, whose result doesn't depend on an element's place in a vector (unlike torch.sigmoid
  and torch.silu).

Tests check it for each operation, on odd sizes, in float32 and bfloat16, with one and several
threads.
"""

from penstock_kernels.reference.activations import (
    gated_activation,
    gelu_mul,
    plain_activation,
    silu_mul,
    soft_cap,
    sparse_gate,
    xielu,
)
from penstock_kernels.reference.attention import paged_attention
from penstock_kernels.reference.attention_plan import AttentionPlan, plan_attention
from penstock_kernels.reference.choosing import choose_blocks, choose_tokens
from penstock_kernels.reference.compressed import SeenRows, attention_over, entries_of
from penstock_kernels.reference.encoder import layer_norm
from penstock_kernels.reference.kv_cache import (
    Int8Rows,
    KVRows,
    LastNumbers,
    RowsOfBlocks,
    write_kv,
    write_rows,
)
from penstock_kernels.reference.linear import linear, rank_sum
from penstock_kernels.reference.logits_adjustments import RowAdjustments, adjust_row
from penstock_kernels.reference.philox import philox_4x32_10, uniform
from penstock_kernels.reference.recurrent import (
    causal_conv,
    gated_delta,
    mamba1,
    mamba2,
    sigmoid,
    silu,
    softplus,
)
from penstock_kernels.reference.rms_norm import rms_norm, row_mean
from penstock_kernels.reference.rope import (
    apply_rope,
    apply_rope_last,
    inverse_frequencies,
    rope_table,
)
from penstock_kernels.reference.sampling import SamplingCuts, log_softmax_row, sample_row, top_ids

__all__ = [
    "AttentionPlan",
    "Int8Rows",
    "KVRows",
    "LastNumbers",
    "RowAdjustments",
    "RowsOfBlocks",
    "SamplingCuts",
    "SeenRows",
    "adjust_row",
    "apply_rope",
    "apply_rope_last",
    "attention_over",
    "causal_conv",
    "choose_blocks",
    "choose_tokens",
    "entries_of",
    "gated_activation",
    "gated_delta",
    "gelu_mul",
    "inverse_frequencies",
    "layer_norm",
    "linear",
    "log_softmax_row",
    "mamba1",
    "mamba2",
    "paged_attention",
    "philox_4x32_10",
    "plain_activation",
    "plan_attention",
    "rank_sum",
    "rms_norm",
    "rope_table",
    "row_mean",
    "sample_row",
    "sigmoid",
    "silu",
    "silu_mul",
    "soft_cap",
    "softplus",
    "sparse_gate",
    "top_ids",
    "uniform",
    "write_kv",
    "write_rows",
    "xielu",
]
