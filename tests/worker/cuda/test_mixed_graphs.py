"""Steps with prompts' chunks among decodes as graphs: which share one, that any division of their
rows into sequences fits it, and that they have the plain steps' bits."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.attention.layouts import ChunkTiles, MixedShape, write_mixed
from penstock_worker.forward.buckets import (
    MAX_GRAPHS,
    MIXED_GRAPHS,
    MIXED_ROWS,
    Buckets,
    MixedBucket,
    buckets_of,
    mixed_rows,
)
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.padded_inputs import is_text
from penstock_worker.forward.queued import TritonForward
from penstock_worker.media.interface import BatchMedia
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import COLLECTING, Machine, small_setup
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import (
    BLOCK,
    GROUPED,
    NORMED,
    POSITIONS,
    SLOTS,
    batch,
    prompt,
    queued,
)
from tests.worker.cuda.test_on_simulated_gpu import MAMBA, RECURRENT, ahead, jobs
from tests.worker.cuda.test_queued_forward import Recorded

pytestmark = pytest.mark.timeout(240)

BUCKETS = Buckets(30, 3000, 16, mixed_rows=(16, 64, 128))


def step(*counts: int, before: int = 0) -> Batch:
    ends = [before + count for count in counts]
    return Batch(
        tokens=np.arange(sum(counts)),
        tables=[np.zeros(-(-end // 16), dtype=np.int64) for end in ends],
        starts=np.full(len(counts), before),
        counts=np.array(counts),
    )


@pytest.mark.parametrize(
    ("counts", "before", "bucket"),
    [
        ((5,), 0, MixedBucket(16, 16, 512)),
        ((1, 15), 0, MixedBucket(16, 16, 512)),
        ((1, 16), 0, MixedBucket(64, 30, 512)),
        ((1, 16), 497, MixedBucket(64, 30, 1024)),
        ((5,) * 20, 2995, MixedBucket(128, 30, 3008)),
        ((129,), 0, None),
        ((2,) * 31, 0, None),
        ((5,), 3005, None),
    ],
)
def test_buckets(counts: tuple[int, ...], before: int, bucket: MixedBucket | None) -> None:
    assert BUCKETS.of(step(*counts, before=before)) == bucket
    assert bucket is None or bucket in BUCKETS.all


def test_graphs_are_few_and_the_largest_is_captured_first() -> None:
    for context, adapters in ((8192, 0), (131_072, 0), (131_072, 8)):
        buckets = Buckets(256, context, 16, adapters, mixed_rows=MIXED_ROWS)
        mixed = [each for each in buckets.all if isinstance(each, MixedBucket)]
        assert {each.rows for each in mixed} == set(MIXED_ROWS)
        assert len(mixed) <= MIXED_GRAPHS
        assert len(buckets.all) - len(mixed) <= MAX_GRAPHS
        rows = [each.rows for each in buckets.all]
        assert rows == sorted(rows, reverse=True)
        # Whatever context and adapters a step has, it has a graph.
        for end in (1, 5000, context - 20):
            assert buckets.of(step(1, 20, before=end)) in mixed


@pytest.mark.parametrize(
    ("config", "tokens", "rows"),
    [(GROUPED, 8192, MIXED_ROWS), (GROUPED, 40, (16, 32, 40)), (RECURRENT, 8192, MIXED_ROWS)],
)
def test_a_workers_rows(config: ModelConfig, tokens: int, rows: tuple[int, ...]) -> None:
    _, setup = small_setup(GROUPED, None, max_num_batched_tokens=tokens)
    assert mixed_rows(setup, config) == buckets_of(setup, config).mixed_rows == rows


def test_rows_of_media_have_no_graph() -> None:
    none, at = np.zeros(0, np.int64), np.arange(5)

    def showing(**media: Any) -> Batch:
        shown = BatchMedia(**({"rows": none, "embeddings": None} | media))
        plain = step(5)
        return Batch(plain.tokens, plain.tables, plain.starts, plain.counts, media=shown)

    behind = showing(positions=np.stack([at + 3] * 3), last_seen=at)
    assert is_text(behind)
    assert BUCKETS.of(behind) is not None
    inside = [
        showing(rows=np.array([2])),
        showing(positions=np.stack([at, at, at + 1])),
        showing(last_seen=np.maximum(at, 3)),
    ]
    for each in inside:
        assert not is_text(each)
        assert BUCKETS.of(each) is None


@pytest.mark.parametrize("seed", range(40))
def test_any_division_into_sequences_fits(seed: int) -> None:
    """Each row has one tile, of its own sequence and kind; tiles that are left have no query."""
    generator = np.random.default_rng(seed)
    rows, most = int(generator.integers(1, 140)), int(generator.integers(1, 40))
    tiles = ChunkTiles(int(generator.integers(1, 20)), (int(generator.integers(1, 70)), 5))
    shape = MixedShape(rows, min(rows, most), 200, tiles, groups=2)
    count = int(generator.integers(1, shape.sequences + 1))
    cuts = np.sort(generator.choice(np.arange(1, rows), count - 1, replace=False))
    counts = np.diff([0, *cuts, rows])
    starts = generator.integers(0, 300, count)
    tables = [generator.integers(0, 900, 120) for _ in range(2 * count)]
    layout = BatchLayout(tables[:count], starts, counts, (tables[count:],))
    arrays = [np.full(each, 7_777_777, np.int32) for each in shape.arrays]
    write_mixed(arrays, layout, shape, 4)

    slots, written, query_starts, query_lens, lengths, *rest = arrays
    few, long, narrow, second = (rest[at : at + 2] for at in (0, 2, 4, 6))
    firsts = np.cumsum(counts) - counts
    for own, place in ((tables[:count], slots), (tables[count:], second[0])):
        for table, first, start, new in zip(own, firsts, starts, counts, strict=True):
            for row in range(new):
                at = start + row
                assert place[first + row] == table[at // 4] * 4 + at % 4
    assert query_lens[count:].tolist() == lengths[count:].tolist() == [0] * (len(lengths) - count)
    assert len(query_lens) > count
    assert (lengths[:count] == starts + counts).all()
    assert (written[:count, :120] == tables[:count]).all()
    for (sequences, begins), queries, of_few in (
        (few, 1, True),
        (long, tiles.queries[0], False),
        (narrow, 5, False),
    ):
        found: list[int] = []
        for sequence, begin in zip(sequences, begins, strict=True):
            new = query_lens[sequence]
            assert not new or (new <= tiles.few) == of_few
            first = query_starts[sequence] + begin
            found += range(first, first + max(0, min(queries, new - begin)))
        wanted = np.repeat((counts <= tiles.few) == of_few, counts).nonzero()[0]
        assert sorted(found) == wanted.tolist()


WINDOWED = msgspec.structs.replace(
    GROUPED,
    layers=tuple(
        msgspec.structs.replace(layer, attention=AttentionSpec(window=5))
        for layer in GROUPED.layers
    ),
)


@pytest.mark.parametrize("config", [GROUPED, NORMED, WINDOWED], ids=["grouped", "normed", "window"])
def test_padded_steps_have_the_plain_ones_bits(config: ModelConfig) -> None:
    """A prompt of many tokens beside one of few; then its second chunk, a decode and drafted
    tokens; then drafted tokens only, in steps that fill a graph and that don't."""
    plain, padded, captures = queued(config), queued(config), Recorded()
    buckets = Buckets(SLOTS, POSITIONS, BLOCK, mixed_rows=(16, 32, 48))
    with torch.inference_mode():
        padded.use_graphs(buckets, captures, torch.float32)
    long, few, one = (prompt(config, 60, n) for n in (1, 2, 3))
    tables = [[7, 2, 19, 5, 11, 23, 1, 13, 4, 6, 10, 15], [3, 8], [9, 20, 14]]
    steps = [
        batch((long[:21], tables[0], 0), (few[:3], tables[1], 0), (one[:1], tables[2], 0)),
        batch((few[3:4], tables[1], 3), (long[21:40], tables[0], 21), (one[1:6], tables[2], 1)),
        batch((few[4:8], tables[1], 4), (one[6:10], tables[2], 6), (long[40:48], tables[0], 40)),
        batch((one[10:12], tables[2], 10)),
    ]
    for each in steps:
        wanted = np.arange(len(each.tokens))
        with torch.inference_mode():
            ours, theirs = padded.logits(each, wanted), plain.logits(each, wanted)
        assert torch.equal(ours, theirs)
        written = [one.attention.cache.view(torch.uint8) for one in (padded, plain)]
        assert torch.equal(*written)
    assert captures.replayed == len(steps)
    assert captures.captured == len(buckets.all)


@pytest.mark.parametrize("model", ["attention", "gated delta", "mamba 2"])
def test_on_a_simulated_gpu_every_step_is_a_graph_and_nobody_waits(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, of which one tells of its tokens, their chunks, and decodes among them; with
    recurrent layers too."""
    config = {"attention": GROUPED, "gated delta": RECURRENT, "mamba 2": MAMBA}[model]
    more: dict[str, Any] = {} if config is GROUPED else {"state_checkpoint_tokens": 640}

    def launched(*_: object) -> None:
        raise AssertionError("a step's kernels were launched one by one")

    with simulated(Device(1 << 30, computes=False, pace=1)) as device:
        made = Machine(device, config, **more)
        captures, compiled = device.captures, set(device.launched)
        assert captures == len(buckets_of(made.setup, config).all)
        monkeypatch.setattr(TritonForward, "_eager", launched)
        runs = ahead(made, preempt_every=7)
        assert [job.error for job in runs.run(jobs())] == [None] * len(jobs())
        assert runs.most_in_flight == 2
        assert made.waited <= COLLECTING
        assert device.captures == captures
        assert device.launched.keys() == compiled
        made.runner.close()
