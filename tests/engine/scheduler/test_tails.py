"""Sequences of a model with recurrent layers that part: what they share is computed once."""

from __future__ import annotations

import pytest

from penstock.model.kv_layout import FULL, KVGroup
from penstock.protocol.from_frontend import Abort
from penstock.protocol.to_worker import Plan
from tests.engine.handlers.test_beams import advance, expected, search
from tests.engine.harness import Harness
from tests.engine.scheduler.test_states import EVERY, PIECES, PROMPT, SIZE, harness, starts

WINDOW = KVGroup(window=6)


def computed(plans: list[Plan]) -> list[int]:
    """Tokens that each plan computes."""
    return [sum(work.count for work in plan.work) for plan in plans]


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW), (WINDOW,)])
@pytest.mark.parametrize("length", [30, 29, 27, 25, 24, 5])
@pytest.mark.parametrize(("budget", "slots"), [(7, 1), (64, 3)])
def test_a_prompt_is_computed_once_for_all_sequences_of_a_request(
    groups: tuple[KVGroup, ...], length: int, budget: int, slots: int
) -> None:
    """Wherever it ends: between two blocks, in one, behind a checkpoint, before the first; and if
    the others start when the first has ended."""
    h = harness(max_num_batched_tokens=budget, max_num_seqs=slots)
    h.kv_groups = (*groups, KVGroup(every=EVERY, blocks=PIECES))
    h.start_worker(100)
    front = h.connect()
    h.submit(front, PROMPT[:length], n=3, max_tokens=1, ignore_eos=True)
    h.run()
    assert h.worker is not None
    last = length - 1
    assert starts(h.worker.log) == [(0, 0), (last, last), (last, last)]
    assert sum(computed(h.worker.log)) == length + 2
    assert h.core.state.scheduling.pool is not None
    assert h.core.state.scheduling.pool.num_used == 0


def test_sequences_that_write_no_tail_begin_behind_a_checkpoint() -> None:
    """A pool that holds one sequence of this length, and nothing more."""
    h = Harness(block_size=SIZE, max_model_len=36)
    h.kv_groups = (FULL, KVGroup(every=EVERY, blocks=PIECES))
    h.start_worker(9 + 4 * PIECES)
    front = h.connect()
    h.submit(front, PROMPT, n=2, max_tokens=6, ignore_eos=True)
    h.run()
    assert h.worker is not None
    assert all(not new.tail for plan in h.worker.log for new in plan.admitted)
    assert h.core.state.scheduling.pool is not None
    assert h.core.state.scheduling.pool.num_used == 0


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW)])
def test_a_beam_computes_one_token_in_each_step(groups: tuple[KVGroup, ...], caching: bool) -> None:
    h = harness(prefix_caching=caching)
    h.kv_groups = (*groups, KVGroup(every=EVERY, blocks=PIECES))
    h.start_worker(200)
    front = h.connect()
    score = search(h, front)
    h.run()
    assert h.worker is not None
    beams: list[list[int]] = [[]]
    for step in range(12):
        seen = len(h.worker.log)
        # The first two go on from one beam.
        beams = [[*beams[0], 1 + step], [*beams[0], 2], *([*beam, 3] for beam in beams[1:3])]
        advance(h, front, score, beams)
        h.run()
        assert computed(h.worker.log[seen:]) == [len(beams)]
        got = [score.step[index].tokens for index in range(len(beams))]
        assert got == [expected(emitted, index) for index, emitted in enumerate(beams)]
    h.send(front, Abort(1))
    assert h.core.state.scheduling.pool is not None
    assert h.core.state.scheduling.pool.num_used == 0


def test_beams_go_to_the_host_and_come_back() -> None:
    """Another request takes all blocks between two steps."""
    h = harness()
    h.start_worker(ready=False)
    h.worker_ready(26, host_blocks=60)
    front = h.connect()
    score = search(h, front, number=50)
    h.run()
    h.submit(front, [9] * 40, max_tokens=20, ignore_eos=True)
    h.run()
    assert h.worker is not None
    seen = len(h.worker.log)
    advance(h, front, score, [[1], [2]])
    h.run()
    assert computed(h.worker.log[seen:]) == [2]
    assert [score.step[index].tokens for index in (0, 1)] == [expected([1], 0), expected([2], 1)]
    assert h.core.state.scheduling.cache is not None
    assert h.core.state.scheduling.cache.num_swapped_in >= PIECES + 1
