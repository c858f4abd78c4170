"""Steps that go on by themselves give the tokens of a plan for each, until something ends them."""

from __future__ import annotations

import msgspec
import pytest
import torch

from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import PlanError, Slots
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.speculation.drafting import Proposer
from penstock_worker.steps.runner import StepRunner
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import GREEDY, Driver, Job, make_runner

pytestmark = pytest.mark.timeout(240)

DRAWN = TokenSampling(7, temperature=1.0, logprobs=2, adjustments=LogitsAdjustments(presence=0.5))
PROMPTS = ([5, 6, 7, 8, 9], [11, 12, 13], [20] * 17)


@pytest.fixture
def model(tiny_models: dict[torch.dtype, DecoderModel]) -> DecoderModel:
    return tiny_models[torch.float32]


def jobs(ends: tuple[int, ...] = ()) -> list[Job]:
    samplings = (GREEDY, DRAWN, DRAWN)
    return [
        Job(prompt, 24, sampling, index=at, ends=ends)
        for at, (prompt, sampling) in enumerate(zip(PROMPTS, samplings, strict=True))
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_are_those_of_a_plan_each(model: DecoderModel, threads: int) -> None:
    one = Driver(make_runner(model)).run(jobs())
    more = Driver(make_runner(model, threads=threads), extra_steps=9).run(jobs())
    assert [job.tokens for job in more] == [job.tokens for job in one]
    assert [job.logprobs for job in more] == [job.logprobs for job in one]
    assert more[0].steps < one[0].steps / 4


def test_of_the_cpu_kernels_too(default_model: PreparedModel) -> None:
    model = CPUModel(default_model.config, default_model.weights, "auto")
    one = Driver(make_runner(model)).run(jobs())
    more = Driver(make_runner(model), extra_steps=9).run(jobs())
    assert [job.tokens for job in more] == [job.tokens for job in one]
    assert [job.logprobs for job in more] == [job.logprobs for job in one]
    assert more[0].steps < one[0].steps / 4


class Stepper:
    """Two sequences, of which the prompts are computed."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        new = [
            NewSequence(at, PROMPTS[at], len(PROMPTS[at]), at, GREEDY, [3 * at, 3 * at + 1])
            for at in range(2)
        ]
        work = [SlotWork(each.slot, 0, each.num_prompt) for each in new]
        self.starts = [each.num_prompt for each in new]
        self.runner.execute(Plan(1, 0, [], new, work))
        self.last = 1

    def step(self, extra_steps: int, disturbed: list[bool] = (), **plan: object) -> Result:
        """disturbed: what is said before each extra step."""
        said = iter(disturbed)
        work = [SlotWork(at, start, 1) for at, start in enumerate(self.starts)]
        order = Plan(self.last + 1, self.last, [], [], work, extra_steps=extra_steps, **plan)  # type: ignore[arg-type]
        result = self.runner.begin(order, lambda: next(said, False)).result()
        self.last += 1
        for at, each in enumerate(result.slots):
            self.starts[at] += 1 + len(each.more)
        return result


@pytest.fixture
def stepper(model: DecoderModel) -> Stepper:
    return Stepper(make_runner(model, block_size=8, num_blocks=8, slots=2, max_tokens=16))


def lengths(result: Result) -> list[int]:
    return [len(each.tokens) for each in result.slots]


def test_a_message_that_waits_ends_it(stepper: Stepper) -> None:
    assert lengths(stepper.step(5, [False, False, True])) == [3, 3]
    assert lengths(stepper.step(2)) == [3, 3]


def test_an_end_of_one_slot_is_one_of_all(model: DecoderModel, stepper: Stepper) -> None:
    tokens = stepper.step(5).slots[1].tokens
    runner = make_runner(model, block_size=8, num_blocks=8, slots=2, max_tokens=16)
    first = tokens.index(tokens[3]) + 1
    assert lengths(Stepper(runner).step(5, ends=[tokens[3]])) == [first, first]


NEVER = -1
"""No token of the model."""


class Proposes(Proposer):
    """Something to draft once a slot has so many tokens."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def proposed(self, slot: int) -> int:
        return 2 if slot == 0 and len(self._slots[0].token_ids) >= len(PROMPTS[0]) + 4 else 0

    def first(self, slot: int) -> int | None:
        return NEVER if slot == 0 else None


@pytest.mark.parametrize(
    ("wants_proposed", "least", "tokens"),
    [(True, 1, 3), (True, 2, 3), (True, 3, 6), (True, 0, 6), (False, 1, 6)],
)
def test_what_pays_to_draft_ends_it(
    model: DecoderModel, wants_proposed: bool, least: int, tokens: int
) -> None:
    runner = make_runner(
        model, block_size=8, num_blocks=8, slots=2, max_tokens=16, proposer=Proposes
    )
    result = Stepper(runner).step(5, wants_proposed=wants_proposed, least_proposed=least)
    assert lengths(result) == [tokens, tokens]
    assert [each.proposed for each in result.slots] == ([2, 0] if wants_proposed else [0, 0])
    first, second = result.slots
    assert (first.guessed, first.more_guessed) == (False, [False] * (tokens - 1))
    assert (second.guessed, second.more_guessed) == (None, [])


def test_a_failure_leaves_the_tokens_before_it(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot that fails says so in its next step; others go on."""
    forward = stepper.runner._kind._forward
    logits = forward.logits

    def fails(batch: object, rows: object) -> torch.Tensor:
        if any(
            start >= 8 for start, slot in zip(batch.starts, batch.slots, strict=True) if not slot
        ):
            raise RuntimeError("made up")
        return logits(batch, rows)

    monkeypatch.setattr(forward, "logits", fails)
    result = stepper.step(5)
    # Tokens 5, 6 and 7 of the first; the other one was computed again alone, and has one more.
    assert lengths(result) == [3, 4]
    assert all(each.error is None for each in result.slots)
    result = stepper.step(0)
    assert result.slots[0].error is not None
    assert "made up" in result.slots[0].error
    assert lengths(result) == [0, 1]


@pytest.mark.parametrize(
    ("extra_steps", "message"),
    [(11, "11 extra steps after 6; there is room for 9"), (-1, "-1 extra steps")],
)
def test_what_there_is_no_room_for_is_refused(
    stepper: Stepper, extra_steps: int, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        stepper.step(extra_steps)


def test_prompts_and_drafts_do_not_go_on(stepper: Stepper) -> None:
    work = [SlotWork(0, 5, 1, draft=1)]
    plan = Plan(2, 1, [], [], work, extra_steps=2)
    with pytest.raises(PlanError, match="only decodes without drafts"):
        stepper.runner.begin(plan)
    again = msgspec.structs.replace(plan, released=[0], work=[SlotWork(1, 2, 1)])
    with pytest.raises(PlanError):
        stepper.runner.begin(again)
