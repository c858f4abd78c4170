"""Drafts in plans, and what results with them do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.model.kv_layout import FULL, KVGroup
from penstock.protocol.common import Repetition, TokenLogprobs
from penstock.protocol.from_worker import Result, SlotResult
from penstock_engine.request.step_in_flight import UnfitResult, verify_drafts
from penstock_engine.speculation.draft_policy import DraftPolicy, Offer, StepSize
from tests.engine.fake_model import EOS, VOCAB
from tests.engine.harness import Harness
from tests.engine.rank_workers import RankHarness
from tests.engine.scores import RequestScore


class Generous(DraftPolicy):
    """Everybody gets as many as there are."""

    def choose(self, offers: list[Offer], size: StepSize, left: int) -> list[int]:
        return [offer.most for offer in offers]


def drafting(proposed: int = 3, **options: Any) -> Harness:
    """With a worker that proposes so many tokens, which are all right."""
    settings = {"max_num_batched_tokens": 64, "max_steps_in_flight": 2, **options}
    h = Harness(**settings)
    h.core.state.scheduling.draft_policy = Generous()
    h.proposes = lambda: proposed
    h.connect()
    return h


def ask(h: Harness, prompt: list[int], tokens: int = 20, **more: Any) -> RequestScore:
    return h.submit(h.fronts[0], prompt, max_tokens=tokens, **{"ignore_eos": True, **more})


def allotted(h: Harness) -> list[list[int]]:
    """The drafts of each plan's works, for the plans that were executed."""
    assert h.worker is not None
    return [[work.draft for work in plan.work] for plan in h.worker.log]


def test_a_step_with_drafts_is_followed_from_wherever_it_ends() -> None:
    h = drafting()
    h.start_worker()
    score = ask(h, [5, 6], tokens=16)
    assert len(h.plans) == 2  # the prompt, and the first token behind it
    h.run_step()
    assert [plan.work[0].draft for plan, _ in h.plans] == [0, 3]
    h.run_step()
    works = [plan.work[0] for plan, _ in h.plans]
    assert [(work.start, work.draft, work.after_drafts) for work in works] == [
        (3, 3, False),
        (4, 3, True),
    ]
    h.run_step()
    assert len(score.sequences[0].tokens) == 2 + 4
    works = [plan.work[0] for plan, _ in h.plans]
    # The one that was sent before keeps its number; the next one is four tokens further at least.
    assert [(work.start, work.draft, work.after_drafts) for work in works] == [
        (4, 3, True),
        (8, 3, True),
    ]
    h.run()
    # 2 tokens, then four at a time. While both steps may keep all theirs, the last tokens might
    # all be on their way, and nothing follows; of the last two only one can be drafted.
    assert allotted(h) == [[0], [0], [3], [3], [3], [1]]
    assert (score.sequences[0].drafted, score.sequences[0].kept) == (10, 10)


class Reluctant(DraftPolicy):
    """Nobody gets any, and nobody is asked."""

    def choose(self, offers: list[Offer], size: StepSize, left: int) -> list[int]:
        return [0] * len(offers)

    def wants_proposed(self, decodes: int) -> bool:
        return False


@pytest.mark.parametrize(("budget", "drafts"), [(64, [62, 57]), (512, [120])])
def test_of_a_claimed_output_a_step_has_all_that_fits(budget: int, drafts: list[int]) -> None:
    """Whatever the policy thinks of drafts, the worker could propose, and beside others, who get
    none. The harness compares with runs alone."""
    h = drafting(0, max_num_batched_tokens=budget, max_model_len=256, max_steps_in_flight=1)
    h.core.state.scheduling.draft_policy = Reluctant()
    h.start_worker(64)
    claimed = ask(h, [5, 6], tokens=121, prediction=[7] * 120, claimed=True)
    h.run()
    assert len(claimed.sequences[0].tokens) == 121
    assert [found for (found,) in allotted(h) if found] == drafts
    other = ask(h, [8, 9], tokens=121, prediction=[7] * 120)
    h.run()
    assert other.sequences[0].drafted == 0


def test_who_has_no_proposals_keeps_two_steps_in_flight() -> None:
    h = drafting(proposed=0)
    h.start_worker()
    ask(h, [5, 6])
    for _ in range(8):
        h.run_step()
        assert len(h.plans) == 2


def test_no_more_is_drafted_than_may_be_emitted() -> None:
    h = drafting(proposed=40, max_model_len=24)
    h.start_worker()
    short, long = ask(h, [5, 6], tokens=7), ask(h, [7, 8, 9], tokens=60)
    h.run()
    assert [len(each.sequences[0].tokens) for each in (short, long)] == [7, 21]
    assert short.sequences[0].drafted == short.sequences[0].kept
    assert long.sequences[0].drafted == long.sequences[0].kept


@pytest.mark.parametrize("min_tokens", [0, 9])
def test_what_comes_behind_the_end_of_a_sequence_is_left_out(min_tokens: int) -> None:
    """The harness compares with a run alone; each of these ends by an id in mid-stretch."""
    ended = set[str]()
    kept = 0
    for seed in range(12):
        h = drafting(proposed=7)
        h.start_worker()
        score = ask(
            h,
            [5, 6],
            tokens=40,
            seed=seed,
            logprobs=1,
            ignore_eos=False,
            min_tokens=min_tokens,
            stop_token_ids=(11, 12, 13),
        )
        h.run()
        sequence = score.sequences[0]
        assert sequence.terminal is not None
        assert len(sequence.logprobs) == len(sequence.tokens)
        ended.add(f"{sequence.terminal.finish} {sequence.terminal.stop_token is None}")
        assert not {*sequence.tokens[min_tokens:-1]} & {*EOS, 11, 12, 13}
        kept += sequence.drafted - sequence.kept
    assert ended >= {"stop True", "stop False"}
    assert kept > 12, "nothing was cut off"


def test_a_loop_ends_a_sequence_in_the_middle_of_drafts() -> None:
    """The harness compares with a run alone, which writes each pattern out."""
    ended = 0
    for seed in range(12):
        h = drafting(proposed=7)
        h.start_worker()
        score = ask(h, [5, 6], tokens=60, seed=seed, logprobs=1, repetition=Repetition(1, 3, 2))
        h.run()
        sequence = score.sequences[0]
        assert sequence.terminal is not None
        assert len(sequence.logprobs) == len(sequence.tokens)
        ended += sequence.terminal.finish == "repetition"
    assert ended >= 6


def test_drafts_take_no_blocks_that_others_may_soon_need() -> None:
    """The pool holds what both will have: with drafts as without, nobody is preempted."""
    h = drafting(proposed=12, block_size=2, max_num_batched_tokens=32, max_model_len=32)
    h.start_worker(22)
    first, second = ask(h, [5, 6, 7, 8], tokens=17), ask(h, [9, 10, 11, 12], tokens=17)
    h.run()
    assert h.core.state.scheduling.num_preemptions == 0
    assert all(score.sequences[0].kept for score in (first, second))


def test_who_waits_for_blocks_gets_those_that_become_free() -> None:
    h = drafting(proposed=12, block_size=2, max_num_batched_tokens=32, max_model_len=32)
    h.start_worker(16)
    ask(h, [5, 6, 7, 8], tokens=18)
    for _ in range(3):
        h.run_step()
    waiting = ask(h, [9] * 20, tokens=2)
    blocks = {work.slot: len(work.new_blocks) for plan, _ in h.plans for work in plan.work}
    while h.core.state.scheduling.queue:
        h.run_step()
        more = {work.slot: len(work.new_blocks) for plan, _ in h.plans for work in plan.work}
        blocks |= more
        assert max(more.values(), default=0) <= 1 or not h.core.state.scheduling.queue
    h.run()
    assert waiting.sequences[0].terminal is not None


def test_a_sequence_that_loses_its_place_in_mid_draft_says_the_same() -> None:
    h = drafting(proposed=3, block_size=2, max_num_batched_tokens=32)
    h.start_worker(14)
    scores = [ask(h, [5 + at, 6, 7], tokens=18) for at in range(3)]
    in_draft = 0
    for _ in range(400):
        running = list(h.core.state.scheduling.running.values())
        if len(running) > 1 and running[-1].progress.drafts:
            in_draft += 1
            victim = running[-1]
            assert victim.slot is not None
            h.core.state.scheduling.leaving[victim.slot] = victim
        if h.run_step() is None:
            break
    assert in_draft > 1
    assert h.core.state.scheduling.num_preemptions > 1
    assert all(score.sequences[0].terminal is not None for score in scores)


def test_a_suspect_drafts_nothing() -> None:
    h = drafting()
    h.start_worker()
    score = ask(h, [5, 6], deaths=1)
    suspect = next(iter(h.core.state.scheduling.running.values()))
    while suspect.suspect_until:
        assert all(not work.draft for plan, _ in h.plans for work in plan.work)
        h.run_step()
    h.run()
    assert score.sequences[0].kept


@pytest.mark.parametrize("right", [0, 1, 3])
def test_checkpoints_lie_behind_true_tokens_alone(right: int) -> None:
    """Wherever drafts end; the worker fails at a state that is another's."""
    h = drafting()
    h.kv_groups = (FULL, KVGroup(every=8, blocks=2))
    h.start_worker()
    assert h.worker is not None
    h.worker.drafts = lambda most: (most, min(most, right))
    scores = [ask(h, [5, 6, 7], tokens=30), ask(h, [9] * 21, tokens=30)]
    h.run()
    assert sum(map(sum, allotted(h))) > 10
    assert all(len(score.sequences[0].tokens) == 30 for score in scores)


def test_models_over_stages_draft_nothing() -> None:
    staged = RankHarness(1, 2, max_num_batched_tokens=64)
    staged.core.state.scheduling.draft_policy = Generous()
    staged.proposes = lambda: 3
    staged.connect()
    staged.start_worker()
    ask(staged, [5, 6])
    for _ in range(10):
        assert all(not work.draft for plan, _ in staged.plans for work in plan.work)
        staged.run_step()


def test_whose_texts_may_be_drafted_from_and_what_is_foretold_is_told_once() -> None:
    h = drafting()
    h.start_worker()
    ask(h, [5, 6], n=2, prediction=[7, 8, 9], salt="x")
    ask(h, [5, 6], salt="y")
    h.run()
    assert h.worker is not None
    full = [new for plan in h.worker.log for new in plan.admitted if new.draft_scope]
    assert len({new.draft_scope for new in full}) == 2
    assert sorted(new.prediction for new in full if new.prediction) == [[7, 8, 9]]
    bad = ask(h, [5, 6], prediction=[VOCAB])
    assert bad.rejected is not None
    assert "prediction: token id" in bad.rejected.message
    long = ask(h, [5, 6], prediction=[1] * 65)
    assert long.rejected is not None
    assert "at most 64" in long.rejected.message


def test_without_prefix_caching_nobody_is_drafted_from() -> None:
    h = drafting(prefix_caching=False)
    h.start_worker()
    ask(h, [5, 6], prediction=[7, 8])
    h.run()
    assert h.worker is not None
    admitted = [new for plan in h.worker.log for new in plan.admitted]
    assert [(new.draft_scope, new.prediction) for new in admitted] == [(b"", [7, 8])]


def test_a_prediction_is_no_reason_to_refuse_where_the_pool_has_become_small() -> None:
    """Whoever sent it may know no other limit than the model's; and a stream that goes on after its
    worker was replaced brings it again."""
    h = drafting()
    h.start_worker(8)
    assert h.core.state.context_limit.tokens < 60
    asked = ask(h, [5, 6], prediction=[7] * 60)
    h.run()
    assert asked.rejected is None
    assert asked.sequences[0].tokens


def test_what_was_drafted_and_kept_is_counted() -> None:
    h = drafting(proposed=4)
    h.drafts = lambda most: (most, min(most, 2))
    h.start_worker()
    score = ask(h, [5, 6], timeline=True)
    h.run()
    counts, sequence = h.core.state.counts, score.sequences[0]
    assert counts.drafts == sum(any(drafts) for drafts in allotted(h))
    assert (counts.drafted_tokens, counts.kept_tokens) == (sequence.drafted, sequence.kept)
    assert counts.kept_at[0] == counts.drafts
    assert counts.kept_at[2] == 0
    assert sequence.terminal is not None
    timeline = sequence.terminal.timeline
    assert timeline is not None
    assert (timeline.drafted, timeline.kept) == (sequence.drafted, sequence.kept)


GOOD = SlotResult(0, 5, drafted=3, more=[6, 7])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drafted": 4}, "the limit is 3"),
        ({"drafted": 1}, "drafted 1 tokens and kept 2"),
        ({"more": [6, VOCAB]}, f"returned token {VOCAB}"),
        ({"more": [-1]}, "returned token -1"),
        ({"token": None}, "did not sample"),
        ({"proposed": -1}, "proposes -1"),
    ],
)
def test_a_result_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    verify_drafts(GOOD, 3, VOCAB)
    with pytest.raises(UnfitResult, match=words):
        verify_drafts(msgspec.structs.replace(GOOD, **changes), 3, VOCAB)


def test_log_probabilities_have_to_be_as_many_as_tokens() -> None:
    h = drafting()
    h.start_worker()
    score = ask(h, [5, 6], logprobs=1)
    h.run_step()
    h.run_step()
    plan = h.plan
    assert plan is not None
    assert plan.work[0].draft == 3
    outcome = SlotResult(0, 5, TokenLogprobs(0.0, (5,), (0.0,)), more=[6], drafted=3)
    h.worker_says(Result(plan.step, [outcome]))
    assert h.worker_end is not None
    assert "returned 1 log-probabilities" in h.worker_end
    h.start_worker()
    h.run()
    assert score.sequences[0].terminal is not None


def test_a_tenant_is_charged_for_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost as much as generated tokens where they were right, and as a prompt's where not."""
    h = drafting(proposed=3)
    h.drafts = lambda most: (most, min(most, 1))
    charged: list[tuple[int, int]] = []
    monkeypatch.setattr(
        h.core.state.scheduling.policy,
        "charge",
        lambda sequence, prompt, generated, held: charged.append((prompt, generated)),
    )
    h.start_worker()
    sequence = ask(h, [5, 6], tokens=30).sequences[0]
    h.run()
    assert sequence.drafted > sequence.kept > 4
    assert sum(prompt for prompt, _ in charged) == 2 + sequence.drafted - sequence.kept
    assert sum(generated for _, generated in charged) == len(sequence.tokens)
