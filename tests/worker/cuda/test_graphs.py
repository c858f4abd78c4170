"""Which steps share a graph, and when graphs are captured."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.tiles import KEY_SPLIT
from penstock_worker.forward.buckets import MAX_GRAPHS, Bucket, Buckets, first_context
from penstock_worker.forward.captures import CapturedWork, EagerCaptures, Work
from penstock_worker.forward.device_step import DeviceStep
from penstock_worker.forward.graphs import DecodeGraphs
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.uploads import Uploads
from tests.interpreted_triton import DEVICE
from tests.worker.cuda.small_models import GROUPED, queued

BUCKETS = Buckets(sequences=30, context=3000, block_size=16)


def decode(count: int, longest: int) -> Batch:
    starts = np.zeros(count, dtype=np.int64)
    starts[-1] = longest - 1
    return Batch(
        tokens=np.arange(count),
        tables=[np.zeros(1 + start // 16, dtype=np.int64) for start in starts],
        starts=starts,
        counts=np.ones(count, dtype=np.int64),
    )


@pytest.mark.parametrize(
    ("count", "longest", "bucket"),
    [
        (1, 1, Bucket(1, 512)),
        (2, 512, Bucket(2, 512)),
        (3, 513, Bucket(4, 1024)),
        (5, 2048, Bucket(8, 2048)),
        (9, 2049, Bucket(16, 3008)),
        (17, 3000, Bucket(24, 3008)),
        (25, 5, Bucket(30, 512)),
        (30, 5, Bucket(30, 512)),
        (31, 5, None),
        (3, 3001, None),
    ],
)
def test_buckets(count: int, longest: int, bucket: Bucket | None) -> None:
    assert BUCKETS.of(decode(count, longest)) == bucket


def test_a_step_with_a_prefill_has_no_bucket() -> None:
    step = decode(2, 9)
    longer = Batch(np.arange(4), step.tables, step.starts, np.array([1, 3]))
    assert BUCKETS.of(longer) is None


@pytest.mark.parametrize(
    ("sequences", "context", "adapters"),
    [
        (256, 8192, 0),
        (256, 131_072, 0),
        (256, 131_072, 8),
        (1024, 40_960, 4),
        (3, 700, 1),
        (1, 64, 0),
    ],
)
def test_all_buckets_are_few_enough_and_every_decode_has_one(
    sequences: int, context: int, adapters: int
) -> None:
    buckets = Buckets(sequences, context, 16, adapters)
    assert 0 < len(buckets.all) == len(set(buckets.all)) <= MAX_GRAPHS
    assert buckets.all[0] == buckets.largest
    sizes = [bucket.sequences for bucket in buckets.all]
    assert sizes == sorted(sizes, reverse=True)
    for count in {1, 2, 3, 9, 130, 250, sequences}:
        for longest in {1, 512, 513, 5000, 8192, context}:
            found = buckets.of(decode(count, longest))
            if count > sequences or longest > context:
                assert found is None
                continue
            assert found in buckets.all
            assert found.sequences >= count
            assert found.context >= longest
            # Of the longest sequence's programs half have work; of the rows half are no padding.
            assert found.context <= max(2 * longest + 16, 512) or adapters
            assert found.sequences < 2 * count or adapters


def test_the_shortest_contexts_have_the_finest_buckets() -> None:
    buckets = Buckets(256, 8192, 16)
    by_context = {context: len(sizes) for context, sizes in _sizes(buckets).items()}
    assert by_context == {512: 35, 1024: 35, 2048: 35, 4096: 9, 8192: 9}


def test_contexts_that_cost_no_more_than_short_ones_share_graphs() -> None:
    """The model is an 8B one with 32 heads of 128: 256 sequences' partial results of 32 splits fit
    one launch, and so do their tables one quick copy."""
    first = first_context(256, 16, 32 * 128)
    assert first == 16_384
    assert {each.context for each in Buckets(256, 8192, 16, first=first).all} == {8192}
    assert len(Buckets(256, 8192, 16, first=first).all) == 35
    longer = _sizes(Buckets(256, 40_960, 16, first=first))
    assert {context: len(sizes) for context, sizes in longer.items()} == {
        16_384: 35,
        32_768: 35,
        40_960: 35,
    }
    # Of 128 heads, 8 splits fit; with blocks of one token, tables of a split's tokens are as many.
    assert first_context(256, 16, 128 * 128) == 4096
    assert first_context(256, 1, 32 * 128) == 1024
    assert first_context(4096, 1, 1 << 20) == KEY_SPLIT


def _sizes(buckets: Buckets) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for bucket in buckets.all:
        found.setdefault(bucket.context, []).append(bucket.sequences)
    return dict(sorted(found.items()))


def test_a_limit_below_every_ladder_keeps_the_largest() -> None:
    buckets = Buckets(30, 3000, 16, limit=1)
    assert buckets.all == (buckets.largest,)
    assert buckets.of(decode(2, 9)) == buckets.largest


class Counted(EagerCaptures):
    """made: for each capture how many rows its step computes."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.made: list[int] = []

    def capture(self, work: Work) -> CapturedWork:
        work()
        self.made.append(self.rows[-1])
        return super().capture(work)


def make_graphs(captures: Counted) -> DecodeGraphs:
    def compute(step: DeviceStep) -> Tensor:
        captures.rows.append(len(step.tokens))
        return step.tokens[:, None].float()

    attention = queued(GROUPED).attention
    out = torch.zeros(8, 1, device=DEVICE)
    return DecodeGraphs(Buckets(8, 640, 4), attention, Uploads(DEVICE), compute, captures, out)


def small(count: int) -> Batch:
    table = [np.zeros(1, dtype=np.int64)] * count
    zeros = np.zeros(count, dtype=np.int64)
    return Batch(np.arange(count) + 3, table, zeros, zeros + 1)


def test_all_are_captured_once_the_largest_first() -> None:
    captures = Counted()
    made = make_graphs(captures)
    made.capture()
    assert captures.made == [8, 8, 4, 4, 2, 2, 1, 1]
    assert len(made) == 8
    made.capture()
    made.hidden(small(3), np.array([0]))
    assert len(captures.made) == 8


def test_no_step_captures() -> None:
    captures = Counted()
    assert make_graphs(captures).hidden(small(3), np.array([0])) is None
    assert captures.made == []


def test_inputs_are_overwritten_and_rows_chosen() -> None:
    made = make_graphs(Counted())
    made.capture()
    for count in (3, 4, 3, 2):
        wanted = np.array([count - 1, 0])
        found = made.hidden(small(count), wanted)
        assert found is not None
        assert found.flatten().tolist() == [count + 2, 3]
