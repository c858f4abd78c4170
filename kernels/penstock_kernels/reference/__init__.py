"""Batch-invariant ops in plain torch, on the CPU.

Promise: a row's result is a function of that row alone, bit for bit.  It doesn't depend on how
many rows there are, on what the others hold, or on where the row lies among them.  Three habits
keep it, on one machine with one torch and one torch thread count:

- matrix products and row reductions run on tiles of one fixed row count (`tiling.ROW_TILE`),
  because BLAS and torch pick their order of summation by shape;
- attention splits the keys by token position, in fixed splits that are combined in order;
- everything else is element by element and made of operations that IEEE 754 rounds exactly, or
  of `torch.exp`, whose lanes don't depend on their place (torch.sigmoid's and torch.silu's do).

Tests check it for each op, on odd sizes, in float32 and bfloat16, with one and several threads.
"""

from penstock_kernels.reference.attention import AttentionPlan, paged_attention, plan_attention
from penstock_kernels.reference.edits import Edits, edit_row
from penstock_kernels.reference.gelu_mul import gelu_mul
from penstock_kernels.reference.kv_cache import Int8Rows, KVRows, write_kv
from penstock_kernels.reference.linear import linear
from penstock_kernels.reference.log_softmax import log_softmax_row
from penstock_kernels.reference.philox import philox_4x32_10, uniform
from penstock_kernels.reference.rank_sum import rank_sum
from penstock_kernels.reference.rms_norm import rms_norm
from penstock_kernels.reference.rope import (
    apply_rope,
    inverse_frequencies,
    linear_scaled,
    llama3_scaled,
    rope_table,
)
from penstock_kernels.reference.sampling import SamplingCuts, sample_row
from penstock_kernels.reference.silu_mul import silu_mul
from penstock_kernels.reference.top_ids import top_ids

__all__ = [
    "AttentionPlan",
    "Edits",
    "Int8Rows",
    "KVRows",
    "SamplingCuts",
    "apply_rope",
    "edit_row",
    "gelu_mul",
    "inverse_frequencies",
    "linear",
    "linear_scaled",
    "llama3_scaled",
    "log_softmax_row",
    "paged_attention",
    "philox_4x32_10",
    "plan_attention",
    "rank_sum",
    "rms_norm",
    "rope_table",
    "sample_row",
    "silu_mul",
    "top_ids",
    "uniform",
    "write_kv",
]
