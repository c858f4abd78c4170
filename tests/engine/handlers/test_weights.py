"""Weights that are replaced: what has begun ends first, and what can't be loaded changes nothing;
and workers that come back on other machines.

The harness asserts that no worker is told of other weights while something open has begun.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import Claim
from penstock.protocol.from_frontend import PutToSleep, ReplaceWeights, WakeUp
from penstock.protocol.from_worker import Fault
from penstock.protocol.to_frontend import Called
from penstock_engine.notes import WeightsNote
from tests.engine.handlers.adopted import AGAIN, FIRST, LONG, PROMPT, begun, is_whole
from tests.engine.handlers.test_sleep import fall_asleep
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore
from tests.engine.walked_harness import Choices
from tests.engine.walks import recorded, replayed, walked_beside


def manifest(h: Harness, digest: str) -> PreparedModel:
    return msgspec.structs.replace(h.facts.model, digest=digest, source=f"/{digest}")


def asks(
    h: Harness, front: Front, digest: str, *, abort: bool = False, seconds: float = 60.0
) -> None:
    model = manifest(h, digest)
    h.send(front, ReplaceWeights(len(front.called) + 1, f"/{digest}", model, abort, seconds))


def finish(score: RequestScore) -> str | None:
    terminal = score.sequences[0].terminal
    return None if terminal is None else terminal.finish


def run_plans(h: Harness) -> None:
    while h.plans:
        h.run_step()


@pytest.mark.parametrize("in_flight", [1, 2])
def test_what_has_begun_ends_and_what_has_not_waits(in_flight: int) -> None:
    h = Harness(max_num_seqs=2, max_steps_in_flight=in_flight)
    front = h.connect()
    h.start_worker(life="w")
    begun = [h.submit(front, [n] * 6, max_tokens=9, ignore_eos=True) for n in (1, 2)]
    waiting = h.submit(front, [3] * 6, max_tokens=4, ignore_eos=True)
    for _ in range(3):
        h.run_step()
    asks(h, front, "new")
    late = h.submit(front, [4] * 4, max_tokens=3, ignore_eos=True)
    run_plans(h)
    assert [finish(each) for each in begun] == ["length", "length"]
    assert not waiting.sequences[0].tokens
    assert h.worker_session is None  # It is told when it comes back.
    assert h.core.state.workers.status()["fingerprint"] is None
    h.start_worker(life="w", ready=False)
    assert h.setup is not None
    assert (h.setup.digest, h.setup.model_dir, h.setup.trial) == ("new", "/new", True)
    assert not front.called
    h.worker_ready()
    assert front.called == [Called(1, 0, 1)]
    h.run()
    assert (finish(waiting), finish(late)) == ("length", "length")
    h.kill_worker()
    h.start_worker(life="other")
    assert h.setup is not None
    assert (h.setup.digest, h.setup.trial) == ("new", False)


def test_abort_ends_what_is_open() -> None:
    h = Harness(max_num_seqs=1)
    one, other = h.connect(), h.connect()
    h.start_worker(life="w")
    open_ones = [h.submit(front, [7] * 5, max_tokens=9) for front in (one, other)]
    h.run_step()
    for each in open_ones:
        each.aborted = True
    asks(h, one, "new", abort=True)
    run_plans(h)
    assert [finish(each) for each in open_ones] == ["abort", "abort"]
    assert h.worker_session is None


def test_who_was_preempted_gets_a_place_before_others() -> None:
    """It stands behind one that hasn't begun: that may start meanwhile, or nobody ever would."""
    h = Harness(max_num_seqs=4, block_size=2, scheduling_policy="priority")
    front = h.connect()
    h.start_worker(12, life="w")
    low = h.submit(front, [1] * 4, max_tokens=12, ignore_eos=True, priority=5)
    for _ in range(3):
        h.run_step()
    high = [h.submit(front, [n] * 8, max_tokens=8, ignore_eos=True) for n in (2, 3)]
    for _ in range(4):
        h.run_step()
    asks(h, front, "new")
    for _ in range(200):
        h.run_step()
        if h.worker_session is None:
            h.start_worker(12, life="w")
    assert {finish(each) for each in (low, *high)} == {"length"}
    assert [each.code for each in front.called] == [""]


@pytest.mark.parametrize("how", ["fault", "death"])
def test_what_cannot_be_loaded_is_taken_back(how: str) -> None:
    h = Harness()
    front = h.connect()
    h.start_worker(life="w")
    before = h.setup.digest if h.setup is not None else ""
    asks(h, front, "bad")
    h.start_worker(life="w", ready=False)
    if how == "fault":
        h.worker_says(Fault("a tensor is missing", final=False))
    else:
        h.kill_worker()
    (answer,) = front.called
    assert answer.code == "failed"
    assert "the previous ones stay" in answer.error
    h.start_worker()
    assert h.setup is not None
    assert (h.setup.digest, h.setup.trial) == (before, False)
    request = h.submit(front, [7] * 5, max_tokens=4, ignore_eos=True)
    h.run()
    assert finish(request) == "length"


def test_what_no_worker_comes_to_load_is_taken_back() -> None:
    """The worker stands still here. A worker that loads has all the time it needs."""
    h = Harness()
    front = h.connect()
    h.start_worker(life="w")
    before = h.setup.digest if h.setup is not None else ""
    asks(h, front, "new", seconds=20.0)
    h.now += 19.5
    h.settle()
    assert not front.called
    h.now += 1
    h.settle()
    assert h.core.next_deadline() > h.now
    (answer,) = front.called
    assert answer.code == "failed"
    assert "the previous ones stay: no worker came to load them within 20 s" in answer.error
    h.start_worker(life="w")
    assert told(h) == (before, False)
    asks(h, front, "new", seconds=20.0)
    h.start_worker(life="w", ready=False)
    h.now += 100
    h.settle()
    assert len(front.called) == 1
    h.worker_ready()
    assert front.called[1:] == [Called(2, 0, 1)]


def told(h: Harness) -> tuple[str, bool]:
    """The digest that the worker was told to load last, and whether it is on trial."""
    assert h.setup is not None
    return h.setup.digest, h.setup.trial


def asleep(h: Harness, front: Front) -> str:
    """Falls asleep. Returns the digest of the weights that were served."""
    h.start_worker(life="w")
    before, _ = told(h)
    h.send(front, PutToSleep(1))
    fall_asleep(h)
    return before


def test_what_cannot_be_loaded_when_a_model_wakes_is_taken_back() -> None:
    """Two sets that were given while it slept: the former ones are those that were served."""
    h = Harness()
    front = h.connect()
    before = asleep(h, front)
    for digest in ("bad", "worse"):
        asks(h, front, digest)
    assert [each.code for each in front.called] == ["", ""]
    h.kill_worker()  # It held none of them.
    h.send(front, WakeUp())
    h.start_worker(ready=False)
    assert told(h) == ("worse", True)
    h.worker_says(Fault("a tensor is missing", final=False))
    assert len(front.called) == 2
    h.start_worker()
    assert told(h) == (before, False)
    request = h.submit(front, [7] * 5, max_tokens=4, ignore_eos=True)
    h.run()
    assert finish(request) == "length"


def test_a_worker_that_dies_while_a_model_wakes_says_nothing_of_its_weights() -> None:
    """The first time: they were promised. One that always does is no use."""
    h = Harness()
    front = h.connect()
    before = asleep(h, front)
    asks(h, front, "new")
    h.send(front, WakeUp())
    for _ in range(2):
        h.start_worker(ready=False)
        assert told(h) == ("new", True)
        h.kill_worker()
    h.start_worker(ready=False)
    assert told(h) == (before, False)


def test_who_waits_for_weights_hears_of_them_when_the_model_is_put_to_sleep() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker(life="w")
    asks(h, front, "new")
    h.start_worker(life="w", ready=False)
    h.send(front, PutToSleep(1))
    fall_asleep(h)
    assert [each.code for each in front.called] == [""]
    h.send(front, WakeUp())
    h.start_worker()
    assert told(h) == ("new", True)
    h.kill_worker()
    h.start_worker()
    assert told(h) == ("new", False)


def test_what_does_not_fit_is_refused_by_name() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    model = msgspec.structs.replace(manifest(h, "new"), add_bos=not h.facts.model.add_bos)
    h.send(front, ReplaceWeights(1, "/new", model))
    assert [each.code for each in front.called] == ["invalid"]
    assert "its add_bos differs from the served model's" in front.called[0].error
    h.send(front, ReplaceWeights(2, "/new", manifest(h, "new"), seconds=0.0))
    assert front.called[1].code == "invalid"
    assert h.worker_session is not None


def test_it_waits_only_so_long_and_one_at_a_time() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [7] * 5, max_tokens=30, ignore_eos=True)
    for _ in range(3):
        h.run_step()
    asks(h, front, "new", seconds=5.0)
    asks(h, front, "newer")
    assert [each.code for each in front.called] == ["unavailable"]
    h.now += 6.0
    h.settle()
    assert [each.code for each in front.called] == ["unavailable", "timed_out"]
    late = h.submit(front, [8] * 5, max_tokens=3, ignore_eos=True)
    h.run()
    assert (finish(request), finish(late)) == ("length", "length")


@pytest.mark.parametrize("seed", range(8))
def test_any_history_with_changes_keeps_the_books(seed: int) -> None:
    digests: set[str] = set()
    numbers = itertools.count()

    def change(h: Harness, choose: Choices) -> None:
        number = next(numbers)
        if h.fronts and choose.whole(0, 40) == 0:
            abort = choose.whole(0, 3) == 0
            for request in [r for f in h.fronts for r in f.requests.values()] if abort else []:
                request.aborted = True
            asks(h, h.fronts[0], f"w{number}", abort=abort)
        digests.add(h.digest)

    walker = walked_beside(seed, change, 2500)
    h = walker.h
    assert len(digests) > 4
    h.now += 61.0  # One that still waits is given up.
    h.settle()
    if h.worker_session is None:
        h.start_worker()
    walker.end()


def test_a_change_is_recorded(tmp_path: Path) -> None:
    h = Harness(max_num_seqs=2)
    with recorded(h, tmp_path):
        front = h.connect()
        h.start_worker(life="w")
        h.submit(front, [3] * 5, max_tokens=6, ignore_eos=True)
        h.run_step()
        asks(h, front, "new")
        run_plans(h)
        h.start_worker(life="w")
        h.submit(front, [3] * 5, max_tokens=6, ignore_eos=True)
        h.run()
    assert replayed(tmp_path) > 0


def test_a_note_outlives_the_process(tmp_path: Path) -> None:
    h = Harness()
    facts = h.facts
    path = str(tmp_path / "weights")
    note = WeightsNote(path)
    assert note.apply(facts) is facts
    note.keep(facts.folder)
    assert not list(tmp_path.iterdir())
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest(h, "new")))
    note.keep(str(folder))
    found = WeightsNote(path).apply(facts)
    assert (found.folder, found.model.digest, found.started_as) == (
        str(folder),
        "new",
        facts.model.digest,
    )
    (folder / "manifest.json").unlink()
    assert WeightsNote(path).apply(facts) is facts


@pytest.mark.parametrize("dies_before", [True, False])
@pytest.mark.parametrize("steps", [6, 40])
def test_what_another_worker_computes_otherwise_is_no_part_of_an_answer(
    steps: int, dies_before: bool
) -> None:
    """Nobody reads it meanwhile who would take it away: its reader has died, or dies when the other
    worker is there. It may have ended."""
    h = Harness()
    front, _ = begun(h, steps)
    h.submit(front, PROMPT[1:], claim=Claim(b"another", retried=True), **LONG)
    if dies_before:
        h.disconnect(front)
    h.kill_worker()
    h.fingerprint = "g"
    h.start_worker()
    if not dies_before:
        h.disconnect(front)
    kept = h.core.state.kept_answers
    assert kept.find(FIRST.digest) is None
    assert kept.find(b"another"), "it had gained nothing, and is all of one kind"
    h.kill_worker()
    h.fingerprint = "f"
    h.start_worker()
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    h.run()
    is_whole(h, again)
    assert (kept.adopted, kept.recomputed) == (0, 1)


@pytest.mark.parametrize("steps", [6, 40])
def test_a_worker_that_computes_alike_goes_on_with_an_answer_that_nobody_reads(steps: int) -> None:
    h = Harness()
    front, _ = begun(h, steps)
    h.disconnect(front)
    h.kill_worker()
    h.start_worker()
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    h.run()
    is_whole(h, again)
    assert h.core.state.kept_answers.adopted == 1
