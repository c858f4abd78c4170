"""Models whose layers are in several KV groups: a block is read only while some layer sees it, and
the bits are those of one group."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.kv_layout import KVLayout, kv_layout, one_group
from penstock.model_config import ModelConfig
from penstock.protocol.to_worker import NO_BLOCK
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.forward import cpu
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.dummy import DummyWeights
from tests.worker.models.family_cases import CASES, SIZES, read
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_parity_on_cpu import cpu_model

BLOCK, POSITIONS, BLOCKS = 16, 256, 96
LENGTH = 100
CHUNKS = (1, 40, 15, 33, 1, 1, 9)
TOKENS = np.random.default_rng(4).integers(0, SIZES["vocab_size"], LENGTH)


def in_one_chunk(forward: Forward, groups: int) -> torch.Tensor:
    """With a table that keeps everything, for each group."""
    tables = [np.arange(7) + 7 * group for group in range(groups)]
    batch = Batch(
        TOKENS, [tables[0]], np.array([0]), np.array([LENGTH]), tuple([each] for each in tables[1:])
    )
    return forward.logits(batch, np.arange(LENGTH))


class Forgetful:
    """Runs one sequence in chunks beside another one. What a group's layers don't see any more is
    filled with not-a-number, and then with what other tokens need; its entry in the table is
    `behind`, or stays."""

    def __init__(self, forward: Forward, layout: KVLayout, behind: int | None) -> None:
        self.forward = forward
        self.groups = layout.groups
        self.behind = behind
        self.free = list(range(BLOCKS))
        random.Random(3).shuffle(self.free)
        self.tables: list[list[list[int]]] = [[[] for _ in self.groups] for _ in range(2)]
        poison(forward, self.free)

    def run(self) -> torch.Tensor:
        found, start = [], 0
        for count in CHUNKS:
            for own in self.tables:
                self.grow(own, start + count)
            part = TOKENS[start : start + count]
            batch = Batch(
                np.concatenate((part[::-1], part)),
                self.of(0),
                np.array([start, start]),
                np.array([count, count]),
                tuple(self.of(group) for group in range(1, len(self.groups))),
            )
            found.append(self.forward.logits(batch, np.arange(count, 2 * count)))
            start += count
            for own in self.tables:
                self.forget(own, start)
        return torch.cat(found)

    def of(self, group: int) -> list[np.ndarray]:
        return [np.array(own[group]) for own in self.tables]

    def grow(self, own: list[list[int]], tokens: int) -> None:
        for table in own:
            while len(table) * BLOCK < tokens:
                table.append(self.free.pop())

    def forget(self, own: list[list[int]], computed: int) -> None:
        for group, table in zip(self.groups, own, strict=True):
            for at in range(group.first_seen(computed) // BLOCK):
                if table[at] >= 0 and table[at] not in self.free:
                    poison(self.forward, [table[at]])
                    self.free.insert(0, table[at])
                if self.behind is not None:
                    table[at] = self.behind


def poison(forward: Forward, blocks: list[int]) -> None:
    """Not-a-number, in every format of the cache."""
    for part in forward.kv_blocks():
        part[blocks] = 255


def reference(config: ModelConfig, layout: KVLayout | None) -> ReferenceForward:
    dtype = torch.float32
    shape = CacheShape.of(config, BLOCK, dtype, layout)
    model = DecoderModel(config, DummyWeights(dtype, torch.device("cpu")), POSITIONS)
    return ReferenceForward(model, ReferenceAttention(shape, BLOCKS))


def check(one: Forward, several: Callable[[], Forward], layout: KVLayout) -> None:
    with torch.inference_mode():
        true = in_one_chunk(one, 1)
        assert bool(true.isfinite().all())
        whole = in_one_chunk(several(), len(layout.groups))
        assert torch.equal(true, whole)
        for behind in (None, NO_BLOCK):
            run = Forgetful(several(), layout, behind)
            assert torch.equal(true, run.run())


@pytest.mark.parametrize("case", ["mistral-window", "gemma2", "gemma3-stretched", "cohere2"])
def test_the_reference_reads_no_block_behind_a_window(case: str) -> None:
    config = read(case)
    layout = kv_layout(config, POSITIONS)
    assert any(group.forgets for group in layout.groups)
    check(reference(config, None), lambda: reference(config, layout), layout)


@pytest.mark.parametrize(
    ("case", "cache"), [("gemma3-stretched", "auto"), ("mistral-window", "int8")]
)
def test_the_cpu_kernels_read_no_block_behind_a_window(
    case: str, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_theirs(*CASES[case]).save_pretrained(tmp_path)
    model = replace(cpu_model(tmp_path), kv_cache_dtype=cache)
    layout = kv_layout(model.config, POSITIONS)

    def forward() -> Forward:
        return model.forward(block_size=BLOCK, num_blocks=BLOCKS, threads=2)

    with monkeypatch.context() as patch:
        patch.setattr(cpu, "kv_layout", lambda config, _: one_group(config.num_layers))
        one = forward()
    check(one, forward, layout)
