"""What is drafted changes no token and no log-probability, whoever drafts it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch

from penstock.model.speculation import SpeculativeConfig
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slots
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.speculation.choose import lookup_proposer
from penstock_worker.speculation.drafting import Proposer
from tests.worker.checkpoints import load_model, tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import Driver, Job, make_runner
from tests.worker.forward.test_cpu_forward import BASE
from tests.worker.grammar.grammar_tools import EVEN, Evens, compile_now
from tests.worker.speculation.drafted_jobs import WANTED, Oracle, jobs

pytestmark = pytest.mark.timeout(300)

Proposes = Callable[[Slots], Proposer]


@pytest.fixture(scope="module", params=["reference", "cpu", "cpu, int8"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> DecoderModel | CPUModel:
    files = tiny_files(tmp_path_factory.mktemp("tiny"), BASE)
    if request.param == "cpu":
        return CPUModel(BASE, files, "bfloat16")
    if request.param == "cpu, int8":
        return CPUModel(BASE, files, "auto", kv_cache_dtype="int8", quantization="int8")
    return load_model(BASE, files, torch.bfloat16)


@pytest.fixture(scope="module")
def alone(model: DecoderModel | CPUModel) -> list[Job]:
    """Each by itself, without drafts."""
    return [run(model, [job])[0] for job in jobs()]


def run(
    model: DecoderModel | CPUModel,
    wanted: list[Job],
    proposer: Proposes = lambda slots: Proposer(),
    *,
    threads: int = 1,
    ends: Sequence[int] = (),
    **whims: int,
) -> list[Job]:
    grammars = SlotGrammars(Evens(BASE.vocab_size), budget=60)
    assert compile_now(grammars, 1, EVEN) is None
    try:
        runner = make_runner(
            model, grammars=grammars, threads=threads, proposer=proposer, ends=ends
        )
        return Driver(runner, **whims).run(wanted)
    finally:
        grammars.close()


def same(found: list[Job], true: list[Job]) -> None:
    for one, other in zip(found, true, strict=True):
        assert one.error is None
        assert one.tokens == other.tokens
        assert one.logprobs == other.logprobs


def knowing(alone: list[Job], wrong: float = 0.25) -> Proposes:
    return lambda slots: Oracle(slots, [job.prompt + job.tokens for job in alone], wrong)


def test_right_and_wrong_drafts_alone(model: DecoderModel | CPUModel, alone: list[Job]) -> None:
    for true, job in zip(alone, jobs(), strict=True):
        [found] = run(model, [job], knowing(alone), draft=5)
        same([found], [true])
        assert 0 < found.kept < found.drafted
        assert found.steps < true.steps


def test_right_drafts_save_steps(model: DecoderModel | CPUModel, alone: list[Job]) -> None:
    """All of five are kept, and a token behind them."""
    [found] = run(model, [jobs()[1]], knowing(alone, 0.0), draft=5)
    same([found], [alone[1]])
    assert found.kept == found.drafted
    assert found.steps == -(-len(found.tokens) // 6)


def test_a_crowd_that_is_preempted(model: DecoderModel | CPUModel, alone: list[Job]) -> None:
    found = run(model, jobs(), knowing(alone), draft=4, threads=2, budget=90, preempt_every=3)
    same(found, alone)
    assert sum(job.preempted for job in found) >= 2
    assert sum(job.kept for job in found) > 20


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_what_is_looked_up(model: DecoderModel | CPUModel, alone: list[Job], method: str) -> None:
    """The second time, outputs of the first are known to `suffix`. Whoever says what is to come
    gets it drafted."""
    config = SpeculativeConfig(method=method)
    known = [*jobs(b"ours"), *jobs(b"ours"), *jobs(b"theirs")]
    for job, true in zip(known[14:], alone, strict=True):
        job.prediction = [*true.tokens[:4], 2, *true.tokens[4:]]

    def one_after_another(slots: Slots) -> Proposer:
        return lookup_proposer(config, slots)

    found = run(model, known, one_after_another, draft=6, budget=200)
    same(found, alone * 3)
    assert sum(job.kept for job in found[14:]) > 7 * 12


def test_a_claimed_output_is_drafted_past_its_ends(
    model: DecoderModel | CPUModel, alone: list[Job]
) -> None:
    """Some are ids at which other sequences end, and somebody else would draft something else."""
    claimed = jobs()
    for job, true in zip(claimed, alone, strict=True):
        job.prediction, job.claimed = true.tokens, True
    ends = {true.tokens[at] for true in alone for at in (4, 11)}
    found = run(model, claimed, lambda slots: SaysItAgain(slots, []), ends=[*ends], draft=11)
    same(found, alone)
    assert [job.steps for job in found] == [2] * len(found)
    assert [job.kept for job in found] == [WANTED - 2] * len(found)


@pytest.mark.parametrize("at", [0, 1, 12, WANTED - 1])
def test_a_claim_that_is_wrong_changes_nothing(
    model: DecoderModel | CPUModel, alone: list[Job], at: int
) -> None:
    claimed = jobs()
    for job, true in zip(claimed, alone, strict=True):
        wrong = [*true.tokens[:at], true.tokens[at] ^ 1, *true.tokens[at + 1 :]]
        job.prediction, job.claimed = wrong, True
    same(run(model, claimed, draft=11), alone)


class SaysItAgain(Oracle):
    """Proposes the newest token over and over."""

    def _of(self, work: SlotWork) -> list[int]:
        return self._slots[work.slot].token_ids[-1:] * work.draft


def test_no_draft_is_right_where_a_mask_is_late(
    model: DecoderModel | CPUModel, alone: list[Job]
) -> None:
    """A slot without a token still ends with the one before, which the draft repeats. Every third
    time another rank says that the masks are late."""
    for proposer in (lambda slots: SaysItAgain(slots, []), knowing(alone)):
        calls = itertools.count()
        grammars = SlotGrammars(
            Evens(BASE.vocab_size),
            budget=60,
            agree=lambda late, calls=calls: [each or not next(calls) % 3 for each in late],
        )
        assert compile_now(grammars, 1, EVEN) is None
        try:
            runner = make_runner(model, grammars=grammars, proposer=proposer)
            [found] = Driver(runner, draft=3).run(jobs()[6:])
        finally:
            grammars.close()
        same([found], alone[6:])
        assert found.deferred > 0
