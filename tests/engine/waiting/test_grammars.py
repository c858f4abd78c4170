"""Structured output in the engine core: who waits for a grammar, for how long, and what becomes of
them.  The harness checks every token against a run alone."""

from __future__ import annotations

import pytest

from penstock.protocol.common import Grammar
from penstock.protocol.from_worker import GrammarFailed, GrammarReady, Result, SlotResult
from penstock.protocol.to_frontend import SequenceOutput
from penstock.protocol.worker_resources import MAX_COMPILING
from penstock_engine.request.states import SequenceState
from penstock_engine.scheduler.state import SchedulerState
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore

FIVE = Grammar("regex", "5")
SIX = Grammar("regex", "6")
BAD = Grammar("lark", "1")
PROMPT = [9, 8, 7]


def make(**options: int) -> tuple[Harness, Front]:
    """With a worker that compiles when it is told to."""
    h = Harness(**options)
    h.compile_at_once = False
    h.start_worker()
    return h, h.connect()


def submit(h: Harness, front: Front, grammar: Grammar | None = FIVE, **options) -> RequestScore:
    return h.submit(front, PROMPT, grammar=grammar, **{"max_tokens": 20, **options})


def terminal(request: RequestScore, index: int = 0) -> SequenceOutput:
    found = request.sequences[index].terminal
    assert found is not None
    return found


def asked(h: Harness) -> list[int]:
    assert h.worker is not None
    return list(h.worker.asked)


def test_a_sequence_waits_until_its_grammar_is_ready() -> None:
    h, front = make()
    bound = submit(h, front)
    free = submit(h, front, None, max_tokens=3, ignore_eos=True)
    assert bound.accepted
    assert not bound.prepared
    [sequence] = h.core.state.grammars.parked()
    assert sequence.state is SequenceState.WAITING_FOR_GRAMMAR
    assert front.status is None or h.core.state.scheduling.queue.num_sequences == 0
    h.run()
    assert terminal(free).finish == "length"
    assert bound.sequences[0].tokens == []
    h.compiles(1)
    assert bound.prepared
    h.run()
    assert terminal(bound).finish == "stop"
    assert len(bound.sequences[0].tokens) == 6  # Five, and the EOS that the grammar ends with.


def test_requests_share_a_grammar_and_the_next_finds_it_ready() -> None:
    h, front = make()
    requests = [submit(h, front, n=2, seed=seed) for seed in range(3)]
    assert asked(h) == [1]
    h.compiles(1)
    h.run()
    late = submit(h, front)
    assert late.prepared
    assert asked(h) == []
    h.run()
    assert {terminal(r, i).finish for r in requests for i in range(2)} == {"stop"}


def test_unused_grammars_make_room_the_longest_unused_first() -> None:
    h, front = make(max_grammars=2)
    h.compile_at_once = True
    for grammar in (FIVE, SIX, FIVE, Grammar("regex", "3")):
        submit(h, front, grammar)
        h.run()
    assert h.worker is not None
    assert [grammar.text for grammar in h.worker.grammars.values()] == ["5", "3"]
    # Held ones stay: a third is refused, for now.
    h.compile_at_once = False
    one, two = submit(h, front), submit(h, front, SIX)
    three = submit(h, front, Grammar("regex", "4"))
    assert three.rejected is not None
    assert three.rejected.code == "overloaded"
    assert "2 grammars are in use" in three.rejected.message
    resumed = submit(h, front, Grammar("regex", "4"), resumed=True)
    assert resumed.accepted
    h.compile_at_once = True
    h.settle()
    h.run()
    assert {terminal(request).finish for request in (one, two, resumed)} == {"stop"}


def test_nothing_is_shared_between_tenants() -> None:
    """Whether another tenant has had a grammar compiled doesn't show in how soon it is there."""
    h, front = make()
    first = submit(h, front, tenant="a", seed=1)
    assert asked(h) == [1]
    same, other = submit(h, front, tenant="a", seed=2), submit(h, front, tenant="b", seed=1)
    assert asked(h) == [1, 2]
    h.compiles(1)
    assert (first.prepared, same.prepared, other.prepared) == (True, True, False)
    h.compiles(2)
    h.run()
    assert [terminal(each).finish for each in (first, same, other)] == ["stop"] * 3
    assert submit(h, front, tenant="b").prepared
    assert not submit(h, front, tenant="c").prepared
    assert asked(h) == [3]


def compiled(h: Harness) -> list[str]:
    assert h.worker is not None
    return [grammar.text for grammar in h.worker.grammars.values()]


def test_a_tenant_pushes_no_other_tenants_grammars_out() -> None:
    """One after the other or all at once: who has most gives way, down to equal shares."""
    h, front = make(max_grammars=6)
    h.compile_at_once = True
    for text, tenant in (("5", "a"), ("6", "a"), *((f"{n}", "flood") for n in range(10, 30))):
        submit(h, front, Grammar("regex", text), tenant=tenant)
        h.run()
    assert compiled(h) == ["5", "6", "26", "27", "28", "29"]
    flood = [submit(h, front, Grammar("regex", f"{n}"), tenant="flood") for n in range(40, 50)]
    assert [each.accepted for each in flood] == [True] * 4 + [False] * 6
    assert "kept for others" in flood[-1].rejected.message
    h.run()
    assert compiled(h)[:2] == ["5", "6"]
    # Another one takes room from who has most, down to equal shares, and then its own.
    for text, tenant in (("7", "b"), ("8", "b"), ("9", "b")):
        submit(h, front, Grammar("regex", text), tenant=tenant)
        h.run()
    assert compiled(h) == ["5", "6", "42", "43", "8", "9"]


def test_what_is_kept_for_others_leaves_half_to_who_uses_it() -> None:
    h, front = make(max_grammars=6)
    h.compile_at_once = True
    for n in range(6):
        submit(h, front, Grammar("regex", f"{10 + n}"), tenant=f"idle {n}")
        h.run()
    busy = [submit(h, front, Grammar("regex", f"{n}"), tenant="busy") for n in range(20, 26)]
    assert [each.accepted for each in busy] == [True] * 3 + [False] * 3
    h.run()
    assert compiled(h) == ["13", "14", "15", "20", "21", "22"]


def test_a_bad_grammar_fails_its_request_before_anything_else() -> None:
    h, front = make()
    request, other = submit(h, front, BAD, n=2), submit(h, front)
    for number in asked(h):
        h.compiles(number)
    for index in range(2):
        end = terminal(request, index)
        assert (end.finish, end.error_code) == ("error", "invalid_grammar")
        assert end.error == "this grammar is bad"
        assert end.tokens == []
    assert not request.prepared
    h.run()
    assert terminal(other).finish == "stop"
    again = submit(h, front, BAD)  # It isn't remembered.
    h.compiles(asked(h)[0])
    assert terminal(again).error_code == "invalid_grammar"


def test_a_grammar_that_no_process_could_compile_is_no_fault_of_its_request() -> None:
    h, front = make()
    request = submit(h, front)
    (number,) = asked(h)
    assert h.worker is not None
    h.worker.bad[number] = h.worker.asked.pop(number)
    h.worker_says(GrammarFailed(number, "it stood still", unavailable=True))
    end = terminal(request)
    assert (end.finish, end.error, end.error_code) == ("error", "it stood still", "unavailable")
    again = submit(h, front)  # Compiled anew.
    h.compiles(asked(h)[0])
    h.run()
    assert terminal(again).finish == "stop"


def test_compiling_has_a_time_bound_that_begins_when_the_worker_is_asked() -> None:
    h, front = make()
    bound = h.facts.config.grammar.grammar_compile_timeout
    requests = [submit(h, front, Grammar("regex", str(n))) for n in range(MAX_COMPILING + 1)]
    assert len(asked(h)) == MAX_COMPILING
    assert h.core.next_deadline() <= h.now + bound
    h.now += bound - 0.001
    h.settle()
    assert all(request.sequences[0].terminal is None for request in requests)
    h.now += 0.001
    h.settle()
    for request in requests[:-1]:
        assert terminal(request).error_code == "complex_grammar"
        assert "within 30 s" in terminal(request).error
    [last] = asked(h)
    h.worker_says(GrammarReady(1))  # Long given up: nobody waits for it.
    h.now += bound - 0.001
    h.settle()
    h.compiles(last)
    h.run()
    assert terminal(requests[-1]).finish == "stop"


def test_an_aborted_request_gives_its_grammar_up() -> None:
    h, front = make()
    gone, stays = submit(h, front), submit(h, front, SIX)
    h.abort(front, gone)
    assert terminal(gone).finish == "abort"
    assert asked(h) == [2]
    h.compiles(2)
    h.run()
    assert terminal(stays).finish == "stop"
    h.submit(front, PROMPT, grammar=FIVE)
    h.disconnect(front)
    assert asked(h) == []


def test_without_a_worker_requests_wait_and_nothing_is_overdue() -> None:
    h = Harness()
    front = h.connect()
    request = submit(h, front)
    h.now += 1000
    h.settle()
    assert request.sequences[0].terminal is None
    h.start_worker()
    h.run()
    assert terminal(request).finish == "stop"


@pytest.mark.parametrize("steps", [1, 2])
def test_a_worker_death_while_it_runs_has_the_grammar_compiled_again(steps: int) -> None:
    h, front = make(max_steps_in_flight=steps)
    h.compile_at_once = True
    running = submit(h, front, max_tokens=12)
    free = submit(h, front, None, seed=4, max_tokens=12, ignore_eos=True)
    for _ in range(3):
        h.run_step()
    assert running.sequences[0].tokens
    h.kill_worker()
    assert h.core.state.grammars.num_waiting == 1
    h.compile_at_once = False
    h.start_worker()
    assert asked(h) == [1]
    h.run()
    assert terminal(free).finish == "length"
    h.compiles(1)
    h.run()
    assert terminal(running).finish == "stop"


def test_a_grammar_that_kills_workers_is_found_and_its_company_is_served() -> None:
    h, front = make()
    deadly, innocent = submit(h, front), submit(h, front, SIX)
    h.kill_worker()
    h.start_worker()
    assert asked(h) == [1]  # Both are suspects: each is compiled alone.
    h.kill_worker()
    h.start_worker()
    assert terminal(deadly).error_code == "complex_grammar"
    assert "2 workers died" in terminal(deadly).error
    [second] = asked(h)
    h.compiles(second)
    h.run()
    assert terminal(innocent).finish == "stop"


def test_a_smaller_pool_ends_what_waits_for_a_grammar_too() -> None:
    h, front = make(block_size=4)
    request = h.submit(front, list(range(1, 31)), grammar=FIVE)
    h.kill_worker()
    h.start_worker(2)
    assert "KV pool" in terminal(request).error


def test_a_grammars_sequence_is_not_followed_before_its_token_is_known() -> None:
    h, front = make(max_steps_in_flight=2)
    h.compile_at_once = True
    bound = submit(h, front, max_tokens=12)
    free = submit(h, front, None, max_tokens=12, ignore_eos=True)
    scores = (bound.sequences[0], free.sequences[0])
    while any(score.terminal is None for score in scores):
        in_flight = [score for _, works in h.plans for score in works]
        assert sum(score is scores[0] for score in in_flight) <= 1
        h.run_step()
    assert h.worker is not None
    assert len(h.worker.log) > 12


@pytest.mark.parametrize("steps", [1, 2])
def test_late_masks_cost_their_own_sequence_alone(steps: int) -> None:
    h, front = make(max_steps_in_flight=steps)
    h.compile_at_once = True
    submit(h, front, None, **free_options())
    h.run()
    assert h.worker is not None
    undisturbed = len(h.worker.log)
    slow = submit(h, front, Grammar("regex", "30"), max_tokens=35)
    plain = submit(h, front, None, **free_options())
    for _ in range(6):
        h.run_step()
    got = len(slow.sequences[0].tokens)
    assert got >= 1
    h.late = lambda: True
    before = len(h.worker.log)
    while slow.sequences[0].terminal is None:
        h.run_step()
    end = terminal(slow)
    assert (end.finish, end.error_code) == ("error", "complex_grammar")
    assert f"late {SchedulerState.MAX_DEFERRALS} steps in a row" in end.error
    assert len(slow.sequences[0].tokens) <= got + 1
    assert len(h.worker.log) - before >= SchedulerState.MAX_DEFERRALS
    h.run()
    assert terminal(plain).finish == "length"
    # As many steps as before, one token in each, and none left out while the other was late.
    plans = h.worker.log[undisturbed:]
    [slot] = [new.slot for plan in plans for new in plan.admitted if new.grammar is None]
    took_part = [any(work.slot == slot for work in plan.work) for plan in plans]
    assert sum(took_part) == undisturbed
    first = took_part.index(True)
    assert steps == 2 or all(took_part[first : first + undisturbed])


def free_options() -> dict[str, object]:
    return {"max_tokens": 40, "ignore_eos": True, "seed": 3}


def test_a_mask_that_is_late_now_and_then_changes_nothing() -> None:
    h, front = make(max_num_batched_tokens=2, block_size=1)
    h.compile_at_once = True
    turns = iter(range(10**6))
    h.late = lambda: next(turns) % 7 != 0
    requests = [submit(h, front, seed=seed) for seed in range(2)]
    one = h.submit(front, [5], grammar=SIX, max_tokens=20)  # Its first token is deferred to 0.
    h.run(20_000)
    assert {terminal(request).finish for request in [*requests, one]} == {"stop"}


def test_replaying_what_was_emitted_may_take_its_time() -> None:
    """The first mask after a resume comes when all tokens before it were replayed."""
    h, front = make()
    h.compile_at_once = True
    request = submit(h, front, Grammar("regex", "30"), max_tokens=40)
    while len(request.sequences[0].tokens) < 10:
        h.run_step()
    h.kill_worker()
    h.start_worker()
    h.late = lambda: True
    for _ in range(SchedulerState.MAX_DEFERRALS + 8):
        h.run_step()
    assert request.sequences[0].terminal is None
    h.late = lambda: False
    h.run_step()
    h.late = lambda: True
    for _ in range(SchedulerState.MAX_DEFERRALS):
        h.run_step()
    assert terminal(request).error_code == "complex_grammar"


def test_only_a_grammars_sequence_may_be_deferred() -> None:
    h, front = make()
    request = submit(h, front, None)
    assert h.plan is not None
    h.worker_says(Result(h.plan.step, [SlotResult(h.plan.work[0].slot, deferred=True)]))
    assert h.worker_end is not None
    assert "should have sampled a token" in h.worker_end
    h.start_worker()
    h.run()
    assert terminal(request).finish in ("stop", "length")


def test_min_tokens_gives_way_where_the_grammar_is_over() -> None:
    h, front = make()
    h.compile_at_once = True
    request = submit(h, front, min_tokens=15)
    h.run()
    assert terminal(request).finish == "stop"
    assert len(request.sequences[0].tokens) == 6


@pytest.mark.parametrize(
    ("grammar", "options", "words"),
    [
        (Grammar("regex", "a" * 262_145), {}, "262145 bytes; at most 262144"),
        (FIVE, {"ignore_eos": True}, "ignore_eos can't be combined"),
    ],
)
def test_what_cannot_be_is_rejected(grammar: Grammar, options: dict, words: str) -> None:
    h, front = make()
    request = submit(h, front, grammar, **options)
    assert request.rejected is not None
    assert request.rejected.code == "invalid"
    assert words in request.rejected.message


def test_what_waits_for_grammars_has_a_bound() -> None:
    h, front = make(max_waiting_requests=3)
    requests = [submit(h, front, seed=seed) for seed in range(4)]
    assert [request.accepted for request in requests] == [True, True, True, False]
    assert "waiting for their grammars" in requests[3].rejected.message
