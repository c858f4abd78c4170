"""The scan of Mamba 2 (Dao and Gu, "Transformers are SSMs", 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.recurrent.states import LayerStates, keep, softplus
from penstock_kernels.triton.tiles import SCAN_FUSED, SCAN_VALUES, SCAN_WARPS


@triton.jit(do_not_specialize=["number", "pieces"])
def _mamba2(
    features,
    convolved,
    rate,
    time_bias,
    skip,
    mixed,
    row_numbers,
    time_first,
    channels,
    heads_of_group,
    groups,
    head_dim,
    state_dim,
    matrix_first,
    least,
    most,
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
    VALUES: tl.constexpr,
    STATE: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    inner = tl.num_programs(1) * head_dim
    value = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    part = tl.arange(0, STATE)
    in_values, in_state = value < head_dim, part < state_dim
    slot = tl.load(slots + sequence).to(tl.int64)
    first = tl.load(firsts + sequence).to(tl.int64)
    column = head * head_dim + value
    results = last + slot * last_numbers + last_first + column
    out = mixed + column
    if (slot < 0) | (tl.load(done + sequence) > number):
        held = tl.load(results, mask=in_values & (slot >= 0), other=0.0)
        for token in range(tl.load(counts + sequence)):
            tl.store(out + (first + token) * inner, held, mask=in_values)
    else:
        group = head // heads_of_group
        of_rate, of_bias = tl.load(rate + head), tl.load(time_bias + head)
        of_skip = tl.load(skip + head)
        both = in_values[:, None] & in_state[None, :]
        stands = matrix_first + column[:, None] * state_dim + part[None, :]
        states = live + slot * live_numbers
        matrix = tl.load(states + stands, mask=both, other=0.0)
        found = tl.zeros([VALUES], tl.float32)
        for token in range(tl.load(counts + sequence)):
            at = first + token
            own = convolved + at * channels
            x = tl.load(own + column, mask=in_values, other=0.0)
            maps = own + inner + group * state_dim + part
            into = tl.load(maps, mask=in_state, other=0.0)
            out_of = tl.load(maps + groups * state_dim, mask=in_state, other=0.0)
            time = tl.load(features + at * row_numbers + time_first + head).to(tl.float32)
            step = tl.minimum(tl.maximum(softplus(time + of_bias), least), most)
            matrix = matrix * tl.exp(step * of_rate) + (x * step)[:, None] * into[None, :]
            found = tl.sum(matrix * out_of[None, :], 1) + x * of_skip
            tl.store(out + at * inner, found, mask=in_values)
            checkpoint = tl.load(behind + at)
            if checkpoint >= 0:
                keep(
                    pool, part_stride, part_numbers, block_numbers, blocks, pieces, checkpoint,
                    stands, matrix, both,
                )  # fmt: skip
        tl.store(states + stands, matrix, mask=both)
        tl.store(results, found, mask=in_values)


@dataclass(frozen=True)
class SelectiveSizes:
    """Sizes of a layer."""

    heads: int
    head_dim: int
    groups: int
    state: int
    """Numbers of the state for each of a head's channels."""
    steps: tuple[float, float]
    """The smallest step in time and the largest."""


def mamba2(
    layer: LayerStates,
    features: Tensor,
    convolved: Tensor,
    constants: tuple[Tensor, Tensor, Tensor],
    sizes: SelectiveSizes,
    *,
    time: int,
    matrix: int,
) -> Tensor:
    """Moves each sequence's matrices on, token by token: a head's decays, takes up the input, and
    is read.

    `features`: [rows, F], of any float dtype, contiguous.
    `convolved`: [rows, channels] float32: inputs, maps into the state, maps out of it.
    `constants`: of each head [heads] float32: the negative rate of decay, what is added to the step
    in time, and the factor with which the input is added to the result.
    `time`: column of the steps in time.
    `matrix`: where the matrices, [heads, head_dim, state], begin in the layer's state.

    Returns [rows, heads * head_dim] float32.
    """
    rows, numbers = features.shape
    inner = sizes.heads * sizes.head_dim
    mixed = torch.empty(rows, inner, dtype=torch.float32, device=features.device)
    if not rows:
        return mixed
    values = min(SCAN_VALUES, triton.next_power_of_2(sizes.head_dim))
    rate, time_bias, skip = constants
    least, most = sizes.steps
    _mamba2[(layer.num_sequences, sizes.heads, triton.cdiv(sizes.head_dim, values))](
        features=features,
        convolved=convolved,
        rate=rate,
        time_bias=time_bias,
        skip=skip,
        mixed=mixed,
        row_numbers=numbers,
        time_first=time,
        channels=convolved.shape[1],
        heads_of_group=sizes.heads // sizes.groups,
        groups=sizes.groups,
        head_dim=sizes.head_dim,
        state_dim=sizes.state,
        matrix_first=layer.state + matrix,
        least=least,
        most=most,
        **layer.arguments,
        VALUES=values,
        STATE=triton.next_power_of_2(sizes.state),
        num_warps=SCAN_WARPS,
        enable_fp_fusion=SCAN_FUSED,
    )
    return mixed
