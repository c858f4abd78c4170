"""Long chunks by FlashAttention 3, for which a slow function of the same interface stands in: what
it is given, when it is called, and that the results are the reference's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.model.attention_spec import KVHeadsSpec
from penstock_kernels.triton.tiles import attention_choice
from penstock_worker.attention.flash_attention import FlashAttention
from penstock_worker.attention.flash_trial import Tried, trial
from penstock_worker.attention.interface import BatchLayout, CacheShape, ScoreRule
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.attention.triton import TritonAttention
from tests.interpreted_triton import DEVICE
from tests.worker.cuda import flash_attn_stand_in as stand_in

pytestmark = pytest.mark.timeout(240)

BLOCK, BLOCKS, HEADS, DIM = 4, 40, 4, 16
HALF = torch.bfloat16
NAME = "FlashAttention 3 of no version"
CLOSE = 0.02
"""The distance allowed, as a share of the largest number: results are rounded to bfloat16."""
TWO_HEADS = KVHeadsSpec(count=2, size=DIM)
KINDS = {
    "plain": (CacheShape(2, HEADS, 2, DIM, BLOCK, HALF), ScoreRule()),
    "one head": (CacheShape(2, HEADS, 1, DIM, BLOCK, HALF), ScoreRule(scale=0.5)),
    "window": (CacheShape(2, HEADS, 2, DIM, BLOCK, HALF), ScoreRule(window=9)),
    "window of one": (CacheShape(2, HEADS, 2, DIM, BLOCK, HALF), ScoreRule(window=1)),
    "soft cap": (CacheShape(2, HEADS, 2, DIM, BLOCK, HALF), ScoreRule(soft_cap=1.5)),
    "wider layers": (
        CacheShape(
            2,
            HEADS,
            2,
            DIM,
            BLOCK,
            HALF,
            heads_of_layers=(TWO_HEADS, KVHeadsSpec(count=1, size=2 * DIM)),
        ),
        ScoreRule(),
    ),
}


def attention(shape: CacheShape, layers: frozenset[int] = frozenset((0, 1))) -> TritonAttention:
    """Its cache is not-a-number wherever nobody wrote."""
    flash = FlashAttention(stand_in.flash_attn_with_kvcache, NAME, layers)
    made = TritonAttention(
        shape, BLOCKS, DEVICE, lambda heads: attention_choice(heads.size), flash=flash
    )
    made.cache.view(torch.uint8).fill_(255)
    return made


def layout(*sequences: tuple[list[int], int, int]) -> BatchLayout:
    """The layout of sequences, (blocks, tokens before, new tokens) each."""
    return BatchLayout(
        [np.array(table) for table, _, _ in sequences],
        np.array([start for _, start, _ in sequences]),
        np.array([count for _, _, count in sequences]),
    )


STEPS = [
    # A long chunk before and behind a short one; then its next one beside a decode; decodes only.
    layout((list(range(0, 24, 2)), 0, 21), ([1, 3], 0, 3), (list(range(5, 25, 2)), 0, 17)),
    layout(([1, 3], 3, 1), (list(range(0, 24, 2)), 21, 26), (list(range(5, 25, 2)), 17, 2)),
    layout(([1, 3], 4, 1), (list(range(0, 24, 2)), 47, 1)),
]
LONG_STEPS = 2


def drawn(rows: int, heads: int, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, heads, size, generator=generator).to(HALF)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_references(kind: str) -> None:
    """In every step, also of rows behind the last sequence's, which are 0."""
    shape, rule = KINDS[kind]
    own, reference = attention(shape), ReferenceAttention(shape, BLOCKS)
    heads = shape.heads_of_layers or (KVHeadsSpec(count=shape.num_kv_heads, size=DIM),) * 2
    with stand_in.counted() as calls, torch.inference_mode():
        for number, step in enumerate(STEPS):
            rows, padding = int(step.counts.sum()), 3 * (number == 1)
            mine, theirs = own.plan(step), reference.plan(step)
            for layer, each in enumerate(heads):
                sizes = (HEADS, each.count, each.count)
                tensors = [
                    drawn(rows + padding, count, each.size, 7 * number + 3 * layer + at)
                    for at, count in enumerate(sizes)
                ]
                own_tensors = [each.to(DEVICE) for each in tensors]
                found = mine.attend(layer, *own_tensors, None, None, rule).cpu()
                wanted = theirs.attend(layer, *tensors, None, None, rule)
                assert found.dtype == HALF
                assert not found[rows:].any()
                apart = (found.float() - wanted.float()).abs().max()
                assert apart <= CLOSE * wanted.float().abs().max()
    assert len(calls) == LONG_STEPS * len(heads)
    assert {call["num_splits"] for call in calls} == {1}
    assert [call["max_seqlen_q"] for call in calls[:: len(heads)]] == [21, 26]


def test_pages_are_views_of_the_cache() -> None:
    seen: list[Tensor] = []

    def watched(q: Tensor, keys: Tensor, values: Tensor, **more: Any) -> Tensor:
        seen.extend((keys, values))
        return stand_in.flash_attn_with_kvcache(q, keys, values, **more)

    shape, rule = KINDS["plain"]
    own = TritonAttention(
        shape,
        BLOCKS,
        DEVICE,
        lambda heads: attention_choice(heads.size),
        flash=FlashAttention(watched, NAME, frozenset((1,))),
    )
    rows = int(STEPS[0].counts.sum())
    tensors = [drawn(rows, count, DIM, count).to(DEVICE) for count in (HEADS, 2, 2)]
    with torch.inference_mode():
        own.plan(STEPS[0]).attend(1, *tensors, None, None, rule)
    storage = own.cache.untyped_storage().data_ptr()
    assert [each.untyped_storage().data_ptr() for each in seen] == [storage] * 2
    assert [tuple(each.shape) for each in seen] == [(BLOCKS, BLOCK, 2, DIM)] * 2


def test_other_layers_and_other_steps_keep_our_kernels() -> None:
    """Layers that it doesn't serve, steps whose rows see further than their own place, and padded
    steps, which are graphs."""
    shape, rule = KINDS["plain"]
    own = attention(shape, layers=frozenset((1,)))
    rows = int(STEPS[0].counts.sum())
    tensors = [drawn(rows, count, DIM, count).to(DEVICE) for count in (HEADS, 2, 2)]
    spans = with_spans(STEPS[0])
    with stand_in.counted() as calls, torch.inference_mode():
        own.plan(STEPS[0]).attend(0, *tensors, None, None, rule)
        own.plan(spans).attend(1, *tensors, None, None, rule)
        own.plan(STEPS[2]).attend(1, *(each[:2] for each in tensors), None, None, rule)
        assert not calls
        own.plan(STEPS[0]).attend(1, *tensors, None, None, rule)
        assert len(calls) == 1


def with_spans(step: BatchLayout) -> BatchLayout:
    seen = step.positions.copy()
    seen[0] = 3
    return BatchLayout(step.block_tables, step.starts, step.counts, last_seen=seen)


TRIED = Tried(HEADS, TWO_HEADS, None, None, None)


@pytest.mark.parametrize(
    "tried",
    [
        TRIED,
        Tried(HEADS, TWO_HEADS, 0.3, 100, None),
        Tried(HEADS, TWO_HEADS, None, 5, 2.0),
        Tried(HEADS, KVHeadsSpec(count=1, size=2 * DIM), None, None, None),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "wider layers"])
def test_a_trial_passes(tried: Tried, kind: str) -> None:
    shape, _ = KINDS[kind]
    assert trial(stand_in.flash_attn_with_kvcache, tried, shape, HALF, DEVICE) is None


def without_window(*tensors: Tensor, **more: Any) -> Tensor:
    return stand_in.flash_attn_with_kvcache(*tensors, **{**more, "window_size": (-1, -1)})


def without_cap(*tensors: Tensor, **more: Any) -> Tensor:
    return stand_in.flash_attn_with_kvcache(*tensors, **{**more, "softcap": 0.0})


def of_whole_pages(q: Tensor, keys: Tensor, values: Tensor, **more: Any) -> Tensor:
    """Multiplies what lies behind a sequence's end by 0."""
    found = stand_in.flash_attn_with_kvcache(q, keys, values, **more)
    return found + 0 * values[more["page_table"][1].long()].sum()


def without_part(*tensors: Tensor, **more: Any) -> Tensor:
    raise RuntimeError("This flash attention build does not support paged KV.")


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (without_window, "away from what they should be"),
        (without_cap, "away from what they should be"),
        (of_whole_pages, "numbers were nan"),
        (without_part, "a trial failed: RuntimeError: This flash attention build"),
    ],
)
def test_a_trial_refuses(kernel: Callable[..., Tensor], reason: str) -> None:
    tried = Tried(HEADS, TWO_HEADS, None, 20, 1.0)
    found = trial(kernel, tried, KINDS["plain"][0], HALF, DEVICE)
    assert found is not None
    assert reason in found
