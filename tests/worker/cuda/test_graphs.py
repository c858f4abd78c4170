"""Which steps share a graph, and which graphs are kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_worker.forward import graphs
from penstock_worker.forward.captures import EagerCaptures
from penstock_worker.forward.device_step import DeviceStep
from penstock_worker.forward.graphs import Bucket, Buckets, DecodeGraphs
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


def make_graphs(limit: int) -> DecodeGraphs:
    def compute(step: DeviceStep) -> Tensor:
        return step.tokens[:, None].float()

    attention = queued(GROUPED).attention
    out = torch.zeros(8, 1, device=DEVICE)
    uploads = Uploads(DEVICE)
    return DecodeGraphs(
        Buckets(8, 640, 4), attention, uploads, compute, EagerCaptures(), out, limit
    )


def small(count: int) -> Batch:
    table = [np.zeros(1, dtype=np.int64)] * count
    zeros = np.zeros(count, dtype=np.int64)
    return Batch(np.arange(count) + 3, table, zeros, zeros + 1)


def test_inputs_are_overwritten_and_rows_chosen() -> None:
    made = make_graphs(4)
    for count in (3, 4, 3, 2):
        wanted = np.array([count - 1, 0])
        found = made.hidden(small(count), wanted)
        assert found is not None
        assert found.flatten().tolist() == [count + 2, 3]
    assert len(made) == 2


def test_a_graph_that_nobody_used_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_UNUSED", 3)
    made, row = make_graphs(2), np.array([0])
    assert made.hidden(small(1), row) is not None
    assert made.hidden(small(2), row) is not None
    # The third decode of a new bucket comes three after the first's last one.
    assert [made.hidden(small(4), row) is not None for _ in range(3)] == [False, True, True]
    assert len(made) == 2
    made.hidden(small(2), row)
    assert made.hidden(small(1), row) is None
