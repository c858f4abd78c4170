"""The convolution in front of a recurrence, or in its place: each channel over time, by itself."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.recurrent.states import LayerStates, keep
from penstock_kernels.triton.tiles import CHANNEL_BLOCK, CHANNEL_WARPS


@triton.jit
def _input(
    x, gate, state, index, first, row, channels, channel, inside, KERNEL: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    """Channels of the token in row `index`; before `first`, of the state's."""
    new = inside & (index >= first)
    place = index.to(tl.int64) * row + channel
    value = tl.load(x + place, mask=new, other=0.0).to(tl.float32)
    if GATED:
        value *= tl.load(gate + place, mask=new, other=0.0).to(tl.float32)
    old = inside & (index < first)
    held = (index - first + KERNEL - 1) * channels + channel
    return tl.where(index < first, tl.load(state + held, mask=old, other=0.0), value)


@triton.jit(do_not_specialize=["number", "pieces"])
def _convolve(
    x,
    gate,
    weight,
    bias,
    out,
    sequences,
    row_numbers,
    channels,
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
    KERNEL: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    sequence = tl.load(sequences + row)
    slot = tl.load(slots + sequence).to(tl.int64)
    to = out + row.to(tl.int64) * channels + channel
    results = last + slot * last_numbers + last_first + channel
    if (slot < 0) | (tl.load(done + sequence) > number):
        if GATED:
            held = tl.load(results, mask=inside & (slot >= 0), other=0.0)
            tl.store(to, held, mask=inside)
    else:
        first = tl.load(firsts + sequence)
        state = live + slot * live_numbers + state_first
        total = tl.zeros([BLOCK], tl.float32)
        for place in tl.static_range(KERNEL):
            index = row - (KERNEL - 1) + place
            value = _input(
                x, gate, state, index, first, row_numbers, channels, channel, inside, KERNEL, GATED
            )
            total += value * tl.load(weight + place * channels + channel, mask=inside, other=0.0)
        if BIAS:
            total += tl.load(bias + channel, mask=inside, other=0.0)
        if GATED:
            if row == first + tl.load(counts + sequence) - 1:
                tl.store(results, total, mask=inside)
        else:
            total = total / (1.0 + tl.exp(-total))
        tl.store(to, total, mask=inside)
        checkpoint = tl.load(behind + row)
        if checkpoint >= 0:
            for place in tl.static_range(1, KERNEL):
                index = row - (KERNEL - 1) + place
                value = _input(
                    x, gate, state, index, first, row_numbers, channels, channel, inside, KERNEL,
                    GATED,
                )  # fmt: skip
                stands = state_first + (place - 1) * channels + channel
                keep(
                    pool, part_stride, part_numbers, block_numbers, blocks, pieces, checkpoint,
                    stands, value, inside,
                )  # fmt: skip


@triton.jit(do_not_specialize=["number", "pieces"])
def _move_inputs(
    x,
    gate,
    row_numbers,
    channels,
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
    KERNEL: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Moves the last inputs into the states. Runs after `_convolve`, whose programs read each
    other's channels of the state."""
    sequence = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    slot = tl.load(slots + sequence).to(tl.int64)
    if (slot >= 0) & (tl.load(done + sequence) <= number):
        first = tl.load(firsts + sequence)
        end = first + tl.load(counts + sequence)
        state = live + slot * live_numbers + state_first
        # In this order: a place is written when what it held has moved forwards.
        for place in tl.static_range(KERNEL - 1):
            index = end - (KERNEL - 1) + place
            value = _input(
                x, gate, state, index, first, row_numbers, channels, channel, inside, KERNEL, GATED
            )
            tl.store(state + place * channels + channel, value, mask=inside)


def causal_conv(
    layer: LayerStates,
    features: Tensor,
    first: int,
    weight: Tensor,
    bias: Tensor | None,
    *,
    gate: int | None = None,
) -> Tensor:
    """Convolves each channel over the tokens of its sequence, and moves the layer's last inputs on,
    [kernel - 1, channels] at the beginning of its state.

    `features`: [rows, F], of any float dtype, contiguous.
    `first`: column of the first channel.
    `weight`: [kernel, channels] float32, the present token's factor last; `bias`: [channels].
    `gate`: first column of what inputs are multiplied by; the results are the layer's, and those of
    last tokens are kept. None: inputs are as they are, and the results go through silu.

    Returns [rows, channels] float32; without a gate, rows of tokens that the state stands for
    already aren't written.
    """
    rows, numbers = features.shape
    kernel, channels = weight.shape
    out = torch.empty(rows, channels, dtype=torch.float32, device=features.device)
    if not rows:
        return out
    tiles = triton.cdiv(channels, CHANNEL_BLOCK)
    x = features[:, first:]
    gates = None if gate is None else features[:, gate:]
    _convolve[(rows, tiles)](
        x=x,
        gate=gates,
        weight=weight,
        bias=bias,
        out=out,
        sequences=layer.moves.sequences,
        row_numbers=numbers,
        channels=channels,
        **layer.arguments,
        KERNEL=kernel,
        GATED=gate is not None,
        BIAS=bias is not None,
        BLOCK=CHANNEL_BLOCK,
        num_warps=CHANNEL_WARPS,
    )
    if kernel > 1:
        _move_inputs[(layer.num_sequences, tiles)](
            x=x,
            gate=gates,
            row_numbers=numbers,
            channels=channels,
            **layer.arguments,
            KERNEL=kernel,
            GATED=gate is not None,
            BLOCK=CHANNEL_BLOCK,
            num_warps=CHANNEL_WARPS,
        )
    return out
