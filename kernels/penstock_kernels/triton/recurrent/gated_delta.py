"""The scan of gated delta nets (Yang et al., "Gated delta networks", 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.recurrent.states import LayerStates, keep, sigmoid, softplus
from penstock_kernels.triton.tiles import SCAN_FUSED, SCAN_VALUES, SCAN_WARPS


@triton.jit
def _unit(vector, size, eps, scale):
    """Divides by the root mean square, then multiplies by `scale`."""
    return vector / tl.sqrt_rn(tl.sum(vector * vector, 0) / size + eps) * scale


@triton.jit(do_not_specialize=["number", "pieces"])
def _gated_delta(
    features,
    convolved,
    rate,
    time_bias,
    mixed,
    row_numbers,
    strength_first,
    time_first,
    channels,
    key_heads,
    several,
    key_dim,
    value_dim,
    matrix_first,
    eps,
    query_scale,
    key_scale,
    live,
    last,
    pool,
    firsts,
    counts,
    slots,
    done,
    behind,
    blocks,
    live_numbers,
    last_numbers,
    state_first,
    last_first,
    number,
    part_stride,
    part_numbers,
    block_numbers,
    pieces,
    TILED: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    heads = tl.num_programs(1)
    value = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    key = tl.arange(0, KEYS)
    in_values, in_keys = value < value_dim, key < key_dim
    slot = tl.load(slots + sequence).to(tl.int64)
    first = tl.load(firsts + sequence).to(tl.int64)
    column = head * value_dim + value
    results = last + slot * last_numbers + last_first + column
    out = mixed + column
    width = (heads * value_dim).to(tl.int64)
    if (slot < 0) | (tl.load(done + sequence) > number):
        held = tl.load(results, mask=in_values & (slot >= 0), other=0.0)
        for token in range(tl.load(counts + sequence)):
            tl.store(out + (first + token) * width, held, mask=in_values)
    else:
        key_head = head % key_heads if TILED else head // several
        of_rate, of_bias = tl.load(rate + head), tl.load(time_bias + head)
        both = in_keys[:, None] & in_values[None, :]
        stands = matrix_first + (head * key_dim + key[:, None]) * value_dim + value[None, :]
        states = live + slot * live_numbers
        matrix = tl.load(states + stands, mask=both, other=0.0)
        found = tl.zeros([VALUES], tl.float32)
        for token in range(tl.load(counts + sequence)):
            at = first + token
            own = convolved + at * channels
            query = tl.load(own + key_head * key_dim + key, mask=in_keys, other=0.0)
            by_key = tl.load(own + (key_heads + key_head) * key_dim + key, mask=in_keys, other=0.0)
            new = tl.load(own + 2 * key_heads * key_dim + column, mask=in_values, other=0.0)
            query = _unit(query, key_dim, eps, query_scale)[:, None]
            by_key = _unit(by_key, key_dim, eps, key_scale)[:, None]
            feature = features + at * row_numbers + head
            strength = sigmoid(tl.load(feature + strength_first).to(tl.float32))
            time = softplus(tl.load(feature + time_first).to(tl.float32) + of_bias)
            matrix *= tl.exp(of_rate * time)
            missing = (new - tl.sum(matrix * by_key, 0)) * strength
            matrix += by_key * missing[None, :]
            found = tl.sum(matrix * query, 0)
            tl.store(out + at * width, found, mask=in_values)
            checkpoint = tl.load(behind + at)
            if checkpoint >= 0:
                keep(
                    pool, part_stride, part_numbers, block_numbers, blocks, pieces, checkpoint,
                    stands, matrix, both,
                )  # fmt: skip
        tl.store(states + stands, matrix, mask=both)
        tl.store(results, found, mask=in_values)


@dataclass(frozen=True)
class DeltaHeads:
    """Sizes of a layer."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tiled: bool
    """Whether value head n has the queries and keys of head n modulo key_heads: see
    GatedDeltaSpec."""


def gated_delta(
    layer: LayerStates,
    features: Tensor,
    convolved: Tensor,
    constants: tuple[Tensor, Tensor],
    heads: DeltaHeads,
    *,
    strength: int,
    matrix: int,
    eps: float,
) -> Tensor:
    """Moves each sequence's matrices on, token by token: a head's decays, is corrected so that the
    key gives more of the value, and is read by the query.

    `features`: [rows, F], of any float dtype, contiguous.
    `convolved`: [rows, channels] float32: queries, keys, values.
    `constants`: of each value head [value_heads] float32: the negative rate of decay, and what is
    added to the step in time.
    `strength`: column of the corrections' strengths, after which the steps in time stand.
    `matrix`: where the matrices, [value_heads, key_dim, value_dim], begin in the layer's state.
    `eps`: of the lengths that queries and keys are divided by.

    Returns [rows, value_heads * value_dim] float32.
    """
    rows, numbers = features.shape
    sizes = (rows, heads.value_heads * heads.value_dim)
    mixed = torch.empty(sizes, dtype=torch.float32, device=features.device)
    if not rows:
        return mixed
    values = min(SCAN_VALUES, triton.next_power_of_2(heads.value_dim))
    grid = (layer.num_sequences, heads.value_heads, triton.cdiv(heads.value_dim, values))
    rate, time_bias = constants
    _gated_delta[grid](
        features=features,
        convolved=convolved,
        rate=rate,
        time_bias=time_bias,
        mixed=mixed,
        row_numbers=numbers,
        strength_first=strength,
        time_first=strength + heads.value_heads,
        channels=convolved.shape[1],
        key_heads=heads.key_heads,
        several=heads.value_heads // heads.key_heads,
        key_dim=heads.key_dim,
        value_dim=heads.value_dim,
        matrix_first=layer.state + matrix,
        eps=eps / heads.key_dim,
        query_scale=heads.key_dim**-1.0,  # Queries are scaled by key_dim ** -0.5 besides.
        key_scale=heads.key_dim**-0.5,
        **layer.arguments,
        TILED=heads.tiled,
        KEYS=triton.next_power_of_2(heads.key_dim),
        VALUES=values,
        num_warps=SCAN_WARPS,
        enable_fp_fusion=SCAN_FUSED,
    )
    return mixed
