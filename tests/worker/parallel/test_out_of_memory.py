"""A rank whose device is full says so, whichever stage it computes; the others lose it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from penstock.model.prepared_model import WeightFiles
from penstock.protocol.from_worker import Fault
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.steps.errors import OutOfDeviceMemory
from tests.worker.checkpoints import TINY, tiny_files
from tests.worker.driver import GREEDY
from tests.worker.parallel import test_group_process
from tests.worker.parallel.group_engine import SMALL, GroupEngine, run_small_rank
from tests.worker.parallel.test_group_process import PROMPT, SAMPLING
from tests.worker.parallel.together import Formed, Together

pytestmark = pytest.mark.timeout(300)

files, setup, true = test_group_process.files, test_group_process.setup, test_group_process.true
PLAN = Plan(1, 0, [], [NewSequence(0, PROMPT, 5, 0, GREEDY, [0])], [SlotWork(0, 0, 5)])


def full(*ignored: object) -> None:
    raise torch.OutOfMemoryError("no room for 3 GiB")


def outcomes(together: Together) -> Iterator[type[Exception] | None]:
    """Outcomes of each rank's step. Who fails hangs up, as a worker does."""

    def step(ranks: Ranks) -> type[Exception] | None:
        try:
            together.runners[ranks].execute(PLAN)
        except Exception as error:
            ranks.leave()
            return type(error)
        return None

    jobs = [together.formed.pool.submit(step, ranks) for ranks in together.formed.ranks]
    return (job.result(100) for job in jobs)


@pytest.mark.parametrize("rank", range(4))
def test_it_is_told_from_a_lost_rank_in_every_stage(files: WeightFiles, rank: int) -> None:
    with Formed(2, 2) as formed:
        together = Together(formed, TINY, files, num_blocks=8)
        together.runners[formed.ranks[rank]]._kind._forward._model.hidden = full
        found = list(outcomes(together))
        together.close()
    assert found[rank] is OutOfDeviceMemory
    # A first stage may be done with the step before the last one fails.
    assert set(found[:rank] + found[rank + 1 :]) <= {GroupLost, None}
    assert GroupLost in found


@pytest.mark.parametrize("what", ["gather", "receive", "send"])
def test_no_room_for_what_ranks_send_is_nobody_elses_loss(files: WeightFiles, what: str) -> None:
    with Formed(2, 2) as formed:
        together = Together(formed, TINY, files, num_blocks=8)
        rank = 3 if what == "receive" else 0
        setattr(formed.ranks[rank]._group, what, full)
        found = list(outcomes(together))
        together.close()
    assert found[rank] is OutOfDeviceMemory


def test_block_copies_may_be_what_there_is_no_room_for(tmp_path: Path) -> None:
    with Formed(1, 2) as formed:
        together = Together(formed, TINY, tiny_files(tmp_path), num_blocks=8)
        together.runners[formed.ranks[0]]._kind._copies.make = full
        assert next(outcomes(together)) is OutOfDeviceMemory
        formed.ranks[0].leave()
        together.close()


def test_a_stage_as_a_process(tmp_path: Path, setup: Setup, true: list[int]) -> None:
    """It goes on with smaller steps, as the engine core then plans them."""
    engine = GroupEngine(tmp_path, 1, 2, run=run_small_rank)
    try:
        engine.form(setup)
        new = NewSequence(0, PROMPT, len(PROMPT), 0, SAMPLING, list(range(8)))
        whole = Plan(1, 0, [], [new], [SlotWork(0, 0, len(PROMPT))])
        engine.send(whole)
        first, last = engine.hear(Fault)
        assert (first.out_of_memory, first.final) == (True, False)
        assert "no room for 3 GiB" in first.message
        assert (last.out_of_memory, last.final) == (False, False)
        engine.drop()
        engine.form(setup)
        part = msgspec.structs.replace(whole, work=[SlotWork(0, 0, SMALL)])
        assert engine.step(part)[1].slots[0].token is None
        rest = Plan(2, 1, [], [], [SlotWork(0, SMALL, len(PROMPT) - SMALL)])
        assert engine.step(rest)[1].slots[0].token == true[0]
    finally:
        engine.close()
