"""A head that rests, and one that goes on afterwards."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from penstock.protocol.to_worker import NewSequence, SlotWork
from penstock_worker.speculation.draft_head import PENDING, _Rows
from penstock_worker.speculation.drafter import MOST_AWAY
from tests.worker.speculation.driven_heads import GREEDY, SIZE, Run, waiting
from tests.worker.speculation.head_folders import Served, written
from tests.worker.speculation.slow_heads import VOCAB, drafts_of


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return written("Glm4Moe", "mtp", tmp_path_factory.mktemp("heads"), layers=3)


def test_a_head_that_rests_follows_nobody_who_is_there_then(served: Served) -> None:
    run = Run(served, "cpu")
    tokens = torch.randint(VOCAB, (60,), generator=torch.Generator().manual_seed(7)).tolist()
    run.plan([SlotWork(0, 0, 60)], [NewSequence(0, tokens, 60, 0, GREEDY, list(range(9)))])
    run.compute([SlotWork(0, 0, 60)])
    run.proposer.upkeep_seconds()
    run.slots[0].append(3)
    [drafts] = run.plan([SlotWork(0, 60, 1, draft=3)])
    assert len(drafts) == 3
    assert run.proposer.upkeep_seconds() == 0.0, "time that was spent on drafts"
    for end in range(60, 60 + MOST_AWAY + 4):
        work = [SlotWork(0, end, 1, draft=3)]
        assert run.plan(work, rests=True) == [[]]
        run.compute(work)
        assert not run.proposer.proposed(0)
        assert waiting(run) <= MOST_AWAY + 1
        run.slots[0].append(end % VOCAB)
    for end in range(64 + MOST_AWAY, 70 + MOST_AWAY):
        work = [SlotWork(0, end, 1, draft=3)]
        assert run.plan(work) == [[]]
        run.compute(work)
        assert not run.proposer.proposed(0)
        assert not waiting(run)
        run.slots[0].append(end % VOCAB)
    assert run.proposer.upkeep_seconds() == 0.0
    # Of the blocks that it has left, another sequence finds what was computed of them.
    second = NewSequence(0, tokens[:50], 50, 0, GREEDY, [0, 1, 2, 3, 4, 5])
    work = [SlotWork(0, 48, 2)]
    assert run.plan(work, [second], released=(0,)) == [[]]
    run.compute(work)
    run.slots[0].append(tokens[50])
    with torch.inference_mode():
        wanted = drafts_of(served.slow, tokens[:51], served.slow.taken(tokens[:50]), 3)
    assert run.plan([SlotWork(0, 50, 1, draft=3)]) == [wanted]
    run.compute([SlotWork(0, 50, 1)])
    for end in range(51, 52 + PENDING):
        run.slots[0].append(tokens[end % 60])
        run.plan([SlotWork(0, end, 1)])
        run.compute([SlotWork(0, end, 1)])
    assert run.proposer.upkeep_seconds() > 0.0


def test_after_a_short_rest_a_head_goes_on_with_who_was_there(served: Served) -> None:
    """As when a prompt lifts the batch to a size at which keeping up doesn't pay, for a moment."""
    run = Run(served, "cpu")
    tokens = torch.randint(VOCAB, (80,), generator=torch.Generator().manual_seed(8)).tolist()
    run.plan([SlotWork(0, 0, 40)], [NewSequence(0, tokens[:40], 40, 0, GREEDY, list(range(12)))])
    run.compute([SlotWork(0, 0, 40)])
    for end in range(40, 48):
        run.slots[0].append(tokens[end])
        other = [SlotWork(1, 0, 20)] if end == 42 else []
        new = [NewSequence(1, tokens[:20], 20, 0, GREEDY, [20, 21, 22])] if other else []
        work = [SlotWork(0, end, 1), *other]
        run.plan(work, new, rests=end > 40)
        run.compute(work)
    run.slots[0].append(tokens[48])
    run.slots[1].append(tokens[20])
    drafts, others = run.plan([SlotWork(0, 48, 1, draft=3), SlotWork(1, 20, 1, draft=3)])
    with torch.inference_mode():
        wanted = drafts_of(served.slow, tokens[:49], served.slow.taken(tokens[:48]), 3)
    assert drafts == wanted
    assert others == [], "it came during the rest"


@pytest.mark.parametrize("rested", [4, 1])
def test_a_prefix_that_was_computed_while_the_head_rested_is_not_offered(
    served: Served, rested: int
) -> None:
    """Where it is most of what a sequence finds in the cache, the head doesn't follow it, whose
    rows would be zeros. rested: blocks of the prefix's five that were computed so."""
    run = Run(served, "cpu")
    tokens = torch.randint(VOCAB, (100,), generator=torch.Generator().manual_seed(9)).tolist()
    for slot, blocks in ((0, range(7)), (1, range(10, 17))):
        new = NewSequence(slot, tokens, 100, 0, GREEDY, list(blocks))
        run.plan([SlotWork(slot, 0, 96)], [new], rests=slot == 1)
        run.compute([SlotWork(slot, 0, 96)])
        work = [SlotWork(slot, 96, 4)]
        run.plan(work, rests=slot == 1)  # What the head follows, it has computed now.
        run.compute(work)
    # The second finds blocks of both, in the order of the tokens.
    found = [*range(5 - rested), *range(15 - rested, 15), 30]
    run.proposer._rows.given([30])
    second = NewSequence(2, tokens[: 5 * SIZE + 4], 5 * SIZE + 4, 0, GREEDY, found)
    work = [SlotWork(2, 5 * SIZE, 4)]
    run.plan(work, [second])
    run.compute(work)
    run.slots[2].append(7)
    [drafts] = run.plan([SlotWork(2, 5 * SIZE + 4, 1, draft=3)])
    assert bool(drafts) is (rested == 1)
    assert bool(run.proposer.proposed(2)) is (rested == 1)


def test_upkeep_of_threads_is_not_lost(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `reference` backend asks from several threads at once. Each pass takes as long as the
    clock says, which here is a second."""
    run = Run(served, "cpu")
    work = [SlotWork(slot, 0, 40) for slot in range(4)]
    tokens = list(range(40))
    new = [
        NewSequence(slot, tokens, 40, 0, GREEDY, list(range(8 * slot, 8 * slot + 8)))
        for slot in range(4)
    ]
    run.plan(work, new)
    run.compute(work)
    run.proposer.upkeep_seconds()
    together = threading.Barrier(4)

    class Sum(float):
        """One that others are added to while somebody adds to it."""

        def __add__(self, other: float) -> Sum:
            time.sleep(0.01)
            return Sum(float(self) + other)

    def clock() -> float:
        clocks.value = getattr(clocks, "value", 0.0) + 1.0
        return float(clocks.value)

    def compute_nothing(asked: list[_Rows]) -> None:
        for each in asked:
            each.layers = list(each.state.layers)

    clocks = threading.local()
    monkeypatch.setattr("penstock_worker.speculation.drafter.time.perf_counter", clock)
    monkeypatch.setattr(run.proposer, "_draft", compute_nothing)
    run.proposer._upkeep = Sum(0.0)

    def ask(slot: int) -> None:
        together.wait(10)
        run.proposer.propose([SlotWork(slot, 40, 1)])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))
    assert run.proposer.upkeep_seconds() == 4.0
