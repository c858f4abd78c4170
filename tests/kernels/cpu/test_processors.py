"""Threads of a step that leave each other's processor: what they may use stays as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder
from tests.kernels.cpu.steps import Run, random_tokens

pytestmark = [
    pytest.mark.usefixtures("loaded"),
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux"),
]

Places = dict[int, set[int]]
"""The processors that each thread of this process may use."""


def places() -> Places:
    found: Places = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            found[int(task.name)] = os.sched_getaffinity(int(task.name))
        except ProcessLookupError:
            continue  # It has ended meanwhile.
    return found


def allow(wanted: Places) -> None:
    for task, processors in wanted.items():
        try:
            os.sched_setaffinity(task, processors)
        except ProcessLookupError:
            continue


@pytest.fixture
def at_first() -> Iterator[Places]:
    before = places()
    yield before
    allow(before)


def test_what_threads_may_use_stays(at_first: Places) -> None:
    """They begin together on one processor, which they can't leave; then they can."""
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("needs two processors")
    model = SlowDecoder(Sizes(hidden=64, inner=64, heads=2, kv_heads=1, positions=64))
    tokens = random_tokens(model.sizes.vocab, 40, 1)
    steps = [[(0, 24)], *[[(0, 1)]] * 16]

    def logits(threads: int) -> np.ndarray:
        run = Run(model.packed(num_blocks=4, threads=threads), [tokens])
        return np.array(run.steps(steps).of(0)).view(np.uint32)

    expected = logits(1)
    logits(2)  # So that its threads are there.
    for processors in ({min(mine)}, mine):
        wanted = dict.fromkeys(places(), processors)
        allow(wanted)
        assert np.array_equal(logits(2), expected)
        after = places()
        assert {task: after[task] for task in wanted if task in after} == {
            task: processors for task in wanted if task in after
        }
