"""Requests that are equal, and open at the same time, are computed once. Every token and
log-probability that each of them gets is compared with the naive model's of a run alone."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.common import Claim, Grammar, SessionTerms
from penstock_engine.sessions import shared_answers
from penstock_engine.sessions.frontends import FrontendSession
from tests.engine.fake_adapters import adapter
from tests.engine.handlers.adopted import PROMPT, is_whole, tokens_computed
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore, undisturbed

LONG: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "logprobs": 2, "seed": 5}
SHARED: dict[str, Any] = {**LONG, "shared": True}


def begun(h: Harness, steps: int, **options: Any) -> tuple[Front, RequestScore]:
    front = h.connect()
    h.start_worker()
    request = h.submit(front, PROMPT, **{**SHARED, **options})
    run(h, steps)
    return front, request


def run(h: Harness, steps: int) -> None:
    for _ in range(steps):
        h.run_step()


def computed_once(**options: Any) -> int:
    h = Harness()
    begun(h, 0, **{**options, "shared": False})
    h.run()
    return tokens_computed(h)


def over(h: Harness) -> None:
    """Nothing is left of anybody."""
    state = h.core.state
    assert not list(state.frontends.requests())
    assert not any(session.readers for session in state.frontends)
    assert not state.frontends.open_requests.by_tenant()
    assert not state.kept_answers._by_share
    assert state.kept_answers._room.total == 0
    assert state.shared_answers.deadlines.next() is None


@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 23])
def test_they_are_computed_once(steps: int, gathered: bool) -> None:
    """Whenever the second comes, it gets everything from the beginning; from the same front end or
    from another."""
    h = Harness()
    front, elder = begun(h, steps, n=2, prompt_logprobs=1)
    others = [
        h.submit(each, PROMPT, n=2, prompt_logprobs=1, gathered=gathered, **SHARED)
        for each in (front, h.connect(), front)
    ]
    h.run()
    for each in (elder, *others):
        is_whole(h, each)
        assert len(each.sequences[0].prompt_logprobs) == len(PROMPT) - 1
    assert [each.shared for each in (elder, *others)] == [False, True, True, True]
    assert tokens_computed(h) == computed_once(n=2, prompt_logprobs=1)
    assert h.core.state.kept_answers.shared == 3
    over(h)


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "another"},
        {"salt": "another"},
        {"seed": 6},
        {"max_tokens": 23},
        {"logprobs": 1},
        {"priority": 1},
        {"grammar": Grammar("regex", "5"), "ignore_eos": False},
        {"session": SessionTerms("s")},
        {"sampling": {"temperature": 0.5}},
        {"prediction": [1]},
        {"shared": False},
        {"deaths": 1},
        {"adapter": adapter(1)},
        {"prompt": [*PROMPT[:-1], PROMPT[-1] + 1]},
    ],
)
def test_what_differs_is_computed_by_itself(other: dict[str, Any]) -> None:
    h = Harness(scheduling_policy="priority", max_loras=2)
    front, elder = begun(h, 3, tenant="one")
    options = {**SHARED, "tenant": "one", "prompt": PROMPT, **other}
    again = h.submit(front, options.pop("prompt"), **options)
    h.run()
    is_whole(h, elder)
    is_whole(h, again)
    assert not again.shared
    assert h.core.state.kept_answers.shared == 0
    over(h)


@pytest.mark.parametrize("grammar", [None, Grammar("regex", "6")])
def test_another_grammar_is_another_answer(grammar: Grammar | None) -> None:
    """Alike in all else, ends included."""
    h = Harness()
    one = {**SHARED, "ignore_eos": False}
    front, elder = begun(h, 3, ignore_eos=False, grammar=Grammar("regex", "5"))
    again = h.submit(front, PROMPT, **{**one, "grammar": grammar})
    assert not again.shared
    h.run()
    is_whole(h, elder)
    is_whole(h, again)


def test_what_draws_nothing_needs_no_seed() -> None:
    h = Harness()
    greedy = {"sampling": {"temperature": 0.0}}
    front, elder = begun(h, 3, **greedy)
    again = h.submit(front, PROMPT, **{**SHARED, "seed": 99, **greedy})
    assert again.shared
    h.run()
    assert again.sequences[0].tokens == elder.sequences[0].tokens


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_one_that_leaves_takes_nothing_from_the_other(first: bool, dies: bool) -> None:
    h = Harness()
    front, elder = begun(h, 4)
    other = h.connect()
    younger = h.submit(other, PROMPT, **SHARED)
    run(h, 3)
    who, gone, stays = (front, elder, younger) if first else (other, younger, elder)
    if dies:
        h.disconnect(who)
    else:
        h.abort(who, gone)
    h.run()
    is_whole(h, stays)
    assert tokens_computed(h) == computed_once()
    over(h)


def test_it_ends_with_the_last() -> None:
    h = Harness()
    front, elder = begun(h, 4)
    younger = h.submit(front, PROMPT, **SHARED)
    h.abort(front, elder)
    assert h.core.state.scheduling.num_running == 1
    h.abort(front, younger)
    h.settle()
    assert not h.core.state.frontends.open_requests.by_tenant()
    assert not list(h.core.state.frontends.requests())
    over(h)


def test_each_has_a_deadline_of_its_own() -> None:
    h = Harness()
    front, elder = begun(h, 2, time_left_ms=1000)
    younger = h.submit(front, PROMPT, time_left_ms=3000, **SHARED)
    last = h.submit(front, PROMPT, **SHARED)
    assert h.core.next_deadline() <= h.now + 1.0
    for seconds, timed_out in ((1.1, [elder]), (2.0, [elder, younger])):
        h.now += seconds
        h.settle()
        h.run_step()
        ends = [each.sequences[0].terminal for each in (elder, younger, last)]
        assert [end is not None and end.finish == "timeout" for end in ends] == [
            each in timed_out for each in (elder, younger, last)
        ]
    h.run()
    is_whole(h, last)
    over(h)


def test_a_stop_string_of_one_is_not_the_others() -> None:
    h = Harness()
    front, elder = begun(h, 4, n=2)
    younger = h.submit(front, PROMPT, n=2, **SHARED)
    h.finish(front, elder, 0)
    run(h, 2)
    assert not elder.over
    h.finish(front, elder, 1)
    assert elder.over
    late = h.submit(front, PROMPT, n=2, **SHARED)
    assert late.shared
    h.finish(front, younger, 0)
    h.finish(front, late, 0)
    cut = h.submit(front, PROMPT, n=2, **SHARED)
    assert not cut.shared, "nobody computes all of it any more"
    h.run()
    assert late.sequences[1].tokens == undisturbed(late.submit, 1, h.facts.max_model_len)[0]
    is_whole(h, cut)
    over(h)


def test_a_stop_string_of_the_only_reader_leaves_nothing_to_share() -> None:
    h = Harness()
    front, elder = begun(h, 4, n=2)
    h.finish(front, elder, 0)
    again = h.submit(front, PROMPT, n=2, **SHARED)
    assert not again.shared
    h.run()
    is_whole(h, again)


def test_it_survives_its_worker() -> None:
    h = Harness()
    front, elder = begun(h, 6)
    younger = h.submit(h.connect(), PROMPT, **SHARED)
    h.kill_worker()
    h.start_worker()
    late = h.submit(front, PROMPT, **SHARED)
    assert late.shared
    h.run()
    for each in (elder, younger, late):
        is_whole(h, each)


@pytest.mark.parametrize("had", [(0, 5), (5, 0), (3, 9), (9, 3), (4, 4)])
def test_both_go_on_together_at_another_engine_core(had: tuple[int, int]) -> None:
    """Each with what it had, whoever is ahead, and gets nothing twice."""
    options = {**SHARED, "logprobs": None}
    h = Harness()
    front = h.connect()
    h.start_worker()
    begun_alone = h.submit(front, PROMPT, **{**options, "shared": False})
    h.run()
    tokens = begun_alone.sequences[0].tokens
    before = tokens_computed(h)
    two = [h.submit(front, PROMPT, emitted={0: tokens[:has]}, **options) for has in had]
    h.run()
    assert two[1].shared
    for each in two:
        assert each.sequences[0].tokens == tokens
        assert each.over
    assert tokens_computed(h) - before <= len(PROMPT) + len(tokens)
    over(h)


def test_each_counts_among_what_its_tenant_has_open() -> None:
    h = Harness(tenants="one:max_requests=2")
    front, elder = begun(h, 3, tenant="one")
    h.submit(front, PROMPT, tenant="one", **SHARED)
    third = h.submit(front, PROMPT, tenant="one", **SHARED)
    assert third.rejected is not None
    assert third.rejected.code == "limited"
    h.abort(front, elder)
    fourth = h.submit(front, PROMPT, tenant="one", **SHARED)
    assert fourth.shared
    h.run()
    is_whole(h, fourth)
    over(h)


def test_a_full_queue_has_room_for_what_is_computed_already() -> None:
    h = Harness(max_num_seqs=1, max_waiting_requests=1)
    front, _ = begun(h, 3)
    h.submit(front, [9, 8, 7])
    assert h.submit(front, [9, 8, 6]).rejected is not None
    again = h.submit(front, PROMPT, **SHARED)
    assert again.shared
    h.run()
    is_whole(h, again)


def test_readers_of_one_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_engine.handlers.adoption.MOST_READERS", 4)
    h = Harness()
    front, _ = begun(h, 2)
    many = [h.submit(front, PROMPT, **SHARED) for _ in range(10)]
    assert [each.shared for each in many[:8]] == 2 * [True, True, True, False]
    h.run()
    for each in many:
        is_whole(h, each)
    over(h)


def test_readers_of_all_answers_are_bounded_and_leave_room_for_other_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_answers, "MOST_IN_ALL", 12)
    h = Harness(max_num_seqs=64)
    front, _ = begun(h, 2, tenant="big")
    big = [h.submit(front, PROMPT, **{**SHARED, "tenant": "big", "seed": seed}) for seed in SEEDS]
    assert sum(each.shared for each in big) == 5, "each with the one that it joined, or the ninth"
    small = [h.submit(front, PROMPT, **{**SHARED, "tenant": "small"}) for _ in range(2)]
    assert small[1].shared
    h.run()
    for each in (*big, *small):
        is_whole(h, each)
    over(h)


SEEDS = [5, 5, 6, 6, 7, 7, 7, 8, 8, 9, 9]


def test_an_answer_that_no_longer_changes_hands_is_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there was no room for its log-probabilities, nobody can be told the first ones."""
    monkeypatch.setattr("penstock_engine.sessions.kept_answers.MOST_KEPT", 20)
    h = Harness()
    front, elder = begun(h, 12)
    younger = h.submit(front, PROMPT, **SHARED)
    assert not younger.shared
    h.run()
    is_whole(h, elder)
    is_whole(h, younger)


@pytest.mark.parametrize("goes_on", [True, False])
def test_streams_of_several_readers_can_be_resumed(goes_on: bool) -> None:
    """All have lost their readers; each comes again, and nobody takes it from another."""
    h = Harness()
    claims = [Claim(bytes([number])) for number in range(3)]
    front = h.connect()
    h.start_worker()
    for claim in claims:
        h.submit(front, PROMPT, claim=claim, **SHARED)
    run(h, 5)
    h.disconnect(front)
    assert len(h.core.state.frontends.orphanage.requests) == 1
    run(h, 2)
    other = h.connect()
    again = [
        h.submit(other, PROMPT, claim=Claim(claim.digest, goes_on=goes_on), **SHARED)
        for claim in claims
    ]
    h.run()
    for each in again:
        is_whole(h, each)
    assert tokens_computed(h) == computed_once()
    h.now += 30.0
    h.settle()
    over(h)


@pytest.mark.parametrize("alike", [True, False], ids=["one key", "two"])
@pytest.mark.parametrize("leaves", [None, 0, 1], ids=["nobody leaves", "the first", "the last"])
def test_it_ends_when_all_have_withdrawn_it(leaves: int | None, *, alike: bool) -> None:
    """Who only leaves may come again: for that one it goes on. One that has withdrawn its request
    won't, nor would it find anything."""
    h = Harness()
    claims = [Claim(b"a key"), Claim(b"a key" if alike else b"another")]
    front, elder = begun(h, 4, claim=claims[0])
    younger = h.submit(front, PROMPT, claim=claims[1], **SHARED)
    for at, each in enumerate((elder, younger)):
        assert h.core.state.scheduling.num_running == 1
        if at == leaves:
            h.leave(front, each)
        else:
            each.left = at > 0 and leaves is not None  # It is in a step still, of nobody's.
            h.abort(front, each)
    h.settle()
    if leaves is None:
        assert not list(h.core.state.frontends.requests()), "nobody would ever read it"
        return
    assert len(h.core.state.frontends.orphanage.requests) == 1
    claim = Claim(claims[leaves].digest, goes_on=True)
    again = h.submit(h.connect(), PROMPT, claim=claim, **SHARED)
    h.run()
    is_whole(h, again)
    assert tokens_computed(h) == computed_once()


def test_one_that_came_again_and_withdrew_is_not_waited_for() -> None:
    h = Harness()
    claims = [Claim(b"one"), Claim(b"two")]
    front, elder = begun(h, 4, claim=claims[0])
    younger = h.submit(front, PROMPT, claim=claims[1], **SHARED)
    h.leave(front, elder)
    again = h.submit(front, PROMPT, claim=Claim(b"one", goes_on=True), **SHARED)
    for each in (younger, again):
        assert h.core.state.scheduling.num_running == 1
        h.abort(front, each)
    h.settle()
    assert not list(h.core.state.frontends.requests())
    h.now += 30.0
    h.settle()
    over(h)


def test_a_retry_finds_what_has_no_token_yet() -> None:
    """Its client has nothing to go on from, but its Idempotency-Key."""
    h = Harness()
    key = Claim(b"key", retried=True)
    front, _ = begun(h, 0, claim=key, shared=False)
    h.disconnect(front)
    assert len(h.core.state.frontends.orphanage.requests) == 1
    again = h.submit(h.connect(), PROMPT, claim=key, **LONG)
    h.run()
    is_whole(h, again)
    assert tokens_computed(h) == computed_once()


def test_a_resumed_stream_is_taken_from_its_own_reader_alone() -> None:
    h = Harness()
    one, two = Claim(b"one"), Claim(b"two")
    front, elder = begun(h, 3, claim=one)
    younger = h.submit(front, PROMPT, claim=two, **SHARED)
    again = h.submit(h.connect(), PROMPT, claim=Claim(b"one", goes_on=True), **SHARED)
    h.run()
    terminal = elder.sequences[0].terminal
    assert terminal is not None
    assert (terminal.finish, terminal.error_code) == ("error", "unavailable")
    is_whole(h, younger)
    is_whole(h, again)
    assert tokens_computed(h) == computed_once()


def test_thousands_that_come_at_once_are_bounded_work() -> None:
    """And one front end's number names one request only."""
    h = Harness()
    front, elder = begun(h, 2)
    before = h.core.state.scheduling.num_running
    many = [h.submit(front, PROMPT, settle=False, **SHARED) for _ in range(2_000)]
    h.settle()
    accepted = sum(each.accepted for each in many)
    assert accepted == len(many) or any(each.rejected is not None for each in many)
    groups = h.core.state.shared_answers.requests
    assert len(groups) <= 1 + -(-len(many) // shared_answers.MOST_READERS)
    assert before == 1
    session = h.core.state.frontends.get(front.session)
    assert isinstance(session, FrontendSession)
    assert not session.requests.keys() & session.readers.keys()
    h.run()
    assert elder.over
    assert all(each.over for each in many if each.accepted)
    over(h)
