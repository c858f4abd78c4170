"""Applies biases, penalties and masks to rows of logits, and counts tokens for penalties.

Element-wise: a program has ADJUST_BLOCK ids of one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.tiles import ADJUST_BLOCK, ADJUST_WARPS

_LARGEST = tl.constexpr(3.4028234663852886e38)


@dataclass(frozen=True)
class DeviceRowAdjustments:
    """The adjustments of each row of a step, on the device."""

    bias_starts: Tensor
    """[rows + 1] int32: where each row's part of bias_ids and biases begins."""
    bias_ids: Tensor
    """int32."""
    biases: Tensor
    """float64."""
    seen: Tensor
    """[slots, vocab] int32: 0 for an id that is in neither prompt nor output, otherwise 1 + how
    often the output contains it (updated by `count_tokens`)."""
    seen_rows: Tensor
    """[rows] int32: the row's slot, or -1 if the row has no penalties."""
    presence: Tensor
    """Presence penalty of each row, [rows] float64."""
    frequency: Tensor
    """Frequency penalty of each row, [rows] float64."""
    repetition: Tensor
    """Repetition penalty of each row, [rows] float64."""
    masks: Tensor
    """[masks, ceil(vocab / 32)] int32: bit i % 32 of word i // 32 allows id i."""
    mask_rows: Tensor
    """[rows] int32: the row's mask, which allows at least one id, or -1 if all ids are allowed."""


@triton.jit
def _rounded(x):
    """Rounds float64 to float32. -inf stays, and no other value becomes infinite."""
    kept = tl.minimum(tl.maximum(x, -_LARGEST), _LARGEST).to(tl.float32)
    return tl.where(x == float("-inf"), float("-inf"), kept)


@triton.jit
def _adjust(
    logits,
    out,
    bias_starts,
    bias_ids,
    biases,
    seen,
    seen_rows,
    presences,
    frequencies,
    repetitions,
    masks,
    mask_rows,
    vocab,
    words,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    place = row.to(tl.int64) * vocab + at
    x = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
    for entry in range(tl.load(bias_starts + row), tl.load(bias_starts + row + 1)):
        raised = _rounded(x.to(tl.float64) + tl.load(biases + entry))
        x = tl.where(at == tl.load(bias_ids + entry), raised, x)
    slot = tl.load(seen_rows + row)
    if slot >= 0:
        count = tl.load(seen + slot.to(tl.int64) * vocab + at, mask=inside, other=0)
        repetition = tl.load(repetitions + row)
        wide = x.to(tl.float64)
        wide = tl.where(wide > 0, wide / repetition, wide * repetition)
        emitted = (count - 1).to(tl.float64)
        less = (wide - tl.load(frequencies + row) * emitted) - tl.load(presences + row)
        x = tl.where(count > 0, _rounded(tl.where(count > 1, less, wide)), x)
    mask = tl.load(mask_rows + row)
    if mask >= 0:
        word = tl.load(masks + mask.to(tl.int64) * words + at // 32, mask=inside, other=0)
        x = tl.where(((word >> (at % 32)) & 1) == 1, x, float("-inf"))
    tl.store(out + place, x, mask=inside)


def adjust_rows(logits: Tensor, adjustments: DeviceRowAdjustments) -> Tensor:
    """Returns a float32 copy with reference.adjust_row applied to every row (biases, then
    penalties), then the row's mask.

    `logits` is [rows, vocab], contiguous, of any float dtype. The bias ids of a row are distinct.
    """
    rows, vocab = logits.shape
    out = torch.empty(rows, vocab, dtype=torch.float32, device=logits.device)
    if rows:
        _adjust[(rows, triton.cdiv(vocab, ADJUST_BLOCK))](
            logits=logits,
            out=out,
            bias_starts=adjustments.bias_starts,
            bias_ids=adjustments.bias_ids,
            biases=adjustments.biases,
            seen=adjustments.seen,
            seen_rows=adjustments.seen_rows,
            presences=adjustments.presence,
            frequencies=adjustments.frequency,
            repetitions=adjustments.repetition,
            masks=adjustments.masks,
            mask_rows=adjustments.mask_rows,
            vocab=vocab,
            words=adjustments.masks.shape[1],
            BLOCK=ADJUST_BLOCK,
            num_warps=ADJUST_WARPS,
        )
    return out


@triton.jit
def _count(seen, slots, tokens, vocab):
    row = tl.program_id(0)
    slot, token = tl.load(slots + row), tl.load(tokens + row)
    if (slot >= 0) & (token >= 0) & (token < vocab):
        place = seen + slot.to(tl.int64) * vocab + token
        tl.store(place, tl.maximum(tl.load(place), 1) + 1)


def count_tokens(seen: Tensor, slots: Tensor, tokens: Tensor) -> None:
    """Counts each row's token in its slot's output. Modifies `seen`.

    `seen`: see DeviceRowAdjustments.
    `slots`: [rows] int32, distinct; -1 for a row without counts.
    `tokens`: [rows] int64; one outside of the vocabulary is ignored.
    """
    if slots.shape[0]:
        _count[(slots.shape[0],)](
            seen=seen, slots=slots, tokens=tokens, vocab=seen.shape[1], num_warps=1
        )
