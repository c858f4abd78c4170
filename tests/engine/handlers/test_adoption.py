"""Answers that outlive their front ends: they go on for a while, and others go on with them.
Every token and log-probability is compared with the naive model's, as all that the core sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.protocol.common import Claim, Grammar
from penstock_engine.request.request import Request
from penstock_engine.sessions import kept_answers
from penstock_engine.sessions.gathered_outputs import Deadlines
from tests.engine.fake_adapters import adapter
from tests.engine.handlers.adopted import (
    AGAIN,
    FIRST,
    LONG,
    PROMPT,
    begun,
    computed_once,
    is_whole,
    tokens_computed,
)
from tests.engine.harness import Harness
from tests.engine.scores import undisturbed


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 7, 23])
def test_it_goes_on_wherever_its_reader_left(steps: int, dies: bool) -> None:
    h = Harness()
    front, request = begun(h, steps, n=2)
    if dies:
        h.disconnect(front)
    else:
        h.leave(front, request)
    for _ in range(4):
        h.run_step()
    assert not h.core.has_open_requests
    other = h.connect()
    again = h.submit(other, PROMPT, claim=AGAIN, n=2, **LONG)
    h.run()
    is_whole(h, again)
    assert tokens_computed(h) == computed_once(n=2)
    assert (h.core.state.kept_answers.adopted, h.core.state.kept_answers.recomputed) == (1, 0)


@pytest.mark.parametrize("steps", [7, 40])
def test_one_that_is_audited_is_gone_on_with_as_any_other(steps: int) -> None:
    """The audit has its log-probabilities computed, which nobody asked for."""
    h = Harness(audit_share=1.0)
    front, _ = begun(h, steps, logprobs=None)
    h.disconnect(front)
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **{**LONG, "logprobs": None})
    h.run()
    assert again.sequences[0].tokens == undisturbed(again.submit, 0, h.facts.max_model_len)[0]
    assert again.sequences[0].logprobs == []
    kept = h.core.state.kept_answers
    assert (kept.adopted, kept.recomputed) == (1, 0)


def test_what_has_gained_nothing_ends_with_its_reader() -> None:
    """Its client has no event to go on from, and asks anew."""
    h = Harness()
    front, request = begun(h, 0)
    h.leave(front, request)
    assert not h.core.state.frontends.orphanage.requests
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    h.run()
    is_whole(h, again)
    assert h.core.state.kept_answers.recomputed == 1


@pytest.mark.parametrize("had", [0, 3, 8])
def test_a_reader_that_has_some_of_it_gets_the_rest(had: int) -> None:
    h = Harness()
    front, request = begun(h, 12)
    tokens = list(request.sequences[0].tokens)
    assert len(tokens) > had
    h.disconnect(front)
    options = {**LONG, "logprobs": None}
    assert h.submit(h.connect(), PROMPT, claim=AGAIN, emitted={0: tokens[:had]}, **options)
    assert h.core.state.kept_answers.recomputed == 1, "it asks for something else"
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, emitted={0: tokens[:had]}, **options)
    h.run()
    score = again.sequences[0]
    assert score.tokens == undisturbed(again.submit, 0, h.facts.max_model_len)[0]
    assert h.core.state.kept_answers.adopted == 1


def test_what_ends_meanwhile_is_kept() -> None:
    h = Harness()
    front, _ = begun(h, 3, prompt_logprobs=1, delivered=1)
    h.disconnect(front)
    h.run()
    assert not h.core.state.scheduling.has_work
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, prompt_logprobs=1, **LONG)
    assert again.over
    is_whole(h, again)
    assert len(again.sequences[0].prompt_logprobs) == len(PROMPT) - 1
    twice = h.submit(h.connect(), PROMPT, claim=AGAIN, prompt_logprobs=1, **LONG)
    is_whole(h, twice)
    assert tokens_computed(h) == computed_once(prompt_logprobs=1)


def test_how_many_tokens_were_cached_is_told_again() -> None:
    h = Harness()
    warm = h.connect()
    h.start_worker()
    h.submit(warm, PROMPT, **LONG)
    h.run()
    request = h.submit(warm, PROMPT, claim=FIRST, **LONG)
    for _ in range(6):
        h.run_step()
    h.disconnect(warm)
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    h.run()
    assert request.cached
    assert again.cached == request.cached


def test_the_newer_reader_wins() -> None:
    h = Harness()
    front, elder = begun(h, 6)
    newer = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    newest = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    h.run()
    for lost in (elder, newer):
        terminal = lost.sequences[0].terminal
        assert terminal is not None
        assert (terminal.finish, terminal.error_code) == ("error", "unavailable")
    is_whole(h, newest)
    assert tokens_computed(h) == computed_once()
    h.disconnect(front)


def test_a_retry_takes_nothing_from_a_reader_that_is_there() -> None:
    """The same Idempotency-Key, for one thing: both get all of it."""
    h = Harness()
    _, elder = begun(h, 6)
    other = h.submit(h.connect(), PROMPT, claim=FIRST, **LONG)
    h.run()
    is_whole(h, elder)
    is_whole(h, other)
    assert other.shared
    assert h.core.state.kept_answers.adopted == 0
    assert tokens_computed(h) == computed_once()


@pytest.mark.parametrize("ended", [False, True])
def test_nobody_goes_on_with_what_has_other_bits(ended: bool) -> None:
    """Workers came that compute otherwise: it is computed anew, from its beginning."""
    h = Harness()
    front, _ = begun(h, 40 if ended else 6)
    h.disconnect(front)
    h.kill_worker()
    h.fingerprint = "another"
    h.start_worker()
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    h.run()
    is_whole(h, again)
    kept = h.core.state.kept_answers
    assert (kept.adopted, kept.recomputed) == (0, 1)


def test_the_next_readers_deadline_takes_the_place_of_the_firsts() -> None:
    h = Harness()
    front, _ = begun(h, 6, time_left_ms=5_000)
    h.disconnect(front)
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, time_left_ms=60_000, **LONG)
    h.now += 30
    h.settle()
    assert not again.over
    h.now += 31
    h.settle()
    terminal = again.sequences[0].terminal
    assert terminal is not None
    assert terminal.finish == "timeout"


def test_it_ends_when_nobody_comes() -> None:
    h = Harness()
    front, _ = begun(h, 6)
    h.disconnect(front)
    h.now += 9.9
    h.settle()
    assert h.core.state.scheduling.num_running == 1
    assert h.core.next_deadline() <= h.now + 0.2
    h.now += 0.2
    h.settle()
    h.run()
    assert h.core.state.scheduling.num_running == 0
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    h.run()
    is_whole(h, again)
    assert h.core.state.kept_answers.recomputed == 1


def test_an_answer_that_has_ended_is_forgotten() -> None:
    h = Harness()
    begun(h, 0)
    h.run()
    h.now += 10.1
    h.settle()
    h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    assert h.core.state.kept_answers.recomputed == 1


@pytest.mark.parametrize("how", ["abort", "no claim", "no grace", "prediction"])
def test_what_is_not_to_be_kept_ends_at_once(how: str) -> None:
    h = Harness(resume_grace_seconds=0.0) if how == "no grace" else Harness()
    options: dict[str, Any] = {"prediction": [1, 2]} if how == "prediction" else {}
    if how == "no claim":
        options["claim"] = None
    front = h.connect()
    h.start_worker()
    request = h.submit(front, PROMPT, **{"claim": FIRST, **LONG, **options})
    h.run_step()
    h.run_step()
    if how == "abort":
        h.abort(front, request)
    else:
        h.leave(front, request)
    h.run()
    assert h.core.state.scheduling.num_running == 0
    if how == "abort":
        h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
        assert h.core.state.kept_answers.recomputed == 1


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "another"},
        {"seed": 6},
        {"max_tokens": 23},
        {"logprobs": 1},
        {"sampling": {"temperature": 0.5}},
        {"adapter": adapter(1)},
        {"prompt": [*PROMPT[:-1], PROMPT[-1] + 1]},
    ],
)
def test_nobody_else_gets_it(other: dict[str, Any]) -> None:
    """Whatever their claim says."""
    h = Harness(max_loras=2)
    front, _ = begun(h, 6, tenant="one")
    h.disconnect(front)
    options = {**LONG, "tenant": "one", "prompt": PROMPT, **other}
    again = h.submit(h.connect(), options.pop("prompt"), claim=AGAIN, **options)
    h.run()
    is_whole(h, again)
    assert h.core.state.kept_answers.adopted == 0


def test_it_gives_way_to_what_its_tenant_asks_for_next() -> None:
    """Who stops a stream, and may have one open, asks the next question at once."""
    h = Harness(tenants="one:max_requests=1")
    front, request = begun(h, 3, tenant="one")
    refused = h.submit(front, [9, 8, 7], tenant="one")
    assert refused.rejected is not None
    assert refused.rejected.code == "limited"
    h.leave(front, request)
    accepted = h.submit(front, [9, 8, 7], tenant="one")
    assert accepted.accepted
    h.run()
    assert accepted.over
    assert not h.core.state.frontends.orphanage.requests


def test_it_is_preempted_while_nobody_reads_it() -> None:
    h = Harness(max_num_seqs=2)
    front = h.connect()
    h.start_worker(14)
    h.submit(front, PROMPT, claim=FIRST, **LONG)
    other = h.connect()
    rival = h.submit(other, [9, 8, 7] * 4, seed=2, max_tokens=24, ignore_eos=True)
    for _ in range(3):
        h.run_step()
    h.disconnect(front)
    while not h.core.state.scheduling.num_preemptions:
        assert h.run_step() is not None, "nothing was preempted"
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    h.run()
    is_whole(h, again)
    assert rival.over


def test_it_outlives_its_worker() -> None:
    h = Harness()
    front, _ = begun(h, 6)
    h.disconnect(front)
    h.kill_worker()
    h.start_worker()
    h.run_step()
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **LONG)
    h.run()
    is_whole(h, again)
    assert h.core.state.kept_answers.adopted == 1


def test_its_grammar_may_still_be_compiled() -> None:
    h = Harness()
    h.compile_at_once = False
    grammar = Grammar("regex", "5")
    front = h.connect()
    h.start_worker()
    options: dict[str, Any] = {"grammar": grammar, "seed": 5}
    elder = h.submit(front, PROMPT, claim=FIRST, **options)
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, **options)
    assert elder.over
    assert not again.prepared
    h.compile_at_once = True
    for number in list(h.worker.asked if h.worker is not None else []):
        h.compiles(number)
    h.run()
    assert again.prepared
    assert again.sequences[0].terminal is not None
    assert h.core.state.kept_answers.adopted == 1


def test_a_leaving_engine_core_does_not_wait_for_it() -> None:
    h = Harness()
    front, _ = begun(h, 6)
    h.disconnect(front)
    h.core.drain(h.now)
    h.settle()
    assert h.core.may_leave(h.now)


def test_prompts_take_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "MOST_KEPT", 320)
    h = Harness()
    front = h.connect()
    h.start_worker()
    short = {**LONG, "logprobs": None, "max_tokens": 1}
    for number in range(6):
        h.submit(front, PROMPT, claim=Claim(bytes([number])), **short)
    h.run()
    found = [h.core.state.kept_answers.find(bytes([number])) for number in range(6)]
    assert [each is not None for each in found] == [False, False, True, True, True, True]


def test_a_choice_that_one_reader_does_without_is_whole_for_others() -> None:
    h = Harness()
    options = {**LONG, "logprobs": None}
    front, request = begun(h, 5, n=2, logprobs=None)
    tokens = list(request.sequences[0].tokens)
    h.disconnect(front)
    one = h.submit(h.connect(), PROMPT, claim=AGAIN, n=2, emitted={0: tokens}, **options)
    h.run()
    assert one.over
    again = h.submit(h.connect(), PROMPT, claim=AGAIN, n=2, **options)
    h.run()
    for index, score in again.sequences.items():
        assert score.tokens == undisturbed(again.submit, index, h.facts.max_model_len)[0]


def test_only_the_newest_deadline_counts() -> None:
    deadlines, request = Deadlines(), cast(Request, SimpleNamespace(arrival=1, deadline=110.0))
    deadlines.watch(request)
    deadlines.forget(request)
    request.deadline = 200.0
    deadlines.watch(request)
    assert deadlines.next() == 200.0
    assert deadlines.over(111.0) == []
    assert deadlines.over(200.0) == [request]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "MOST_KEPT", 320)
    monkeypatch.setattr(kept_answers, "MOST_ORPHANS", 2)
    h = Harness()
    front = h.connect()
    h.start_worker()
    for number in range(3):
        h.submit(front, PROMPT, claim=Claim(bytes([number])), **{**LONG, "logprobs": None})
    h.run()
    found = [h.core.state.kept_answers.find(bytes([number])) for number in range(3)]
    assert all(found), "three answers of 24 tokens fit, with their prompts"
    for number in range(3):
        h.submit(front, PROMPT, claim=Claim(bytes([9, number])), **{**LONG, "logprobs": 5})
    for _ in range(20):
        h.run_step()
    assert not h.core.state.kept_answers.find(bytes([0])), "log-probabilities take its room"
    h.run()
    assert not any(h.core.state.kept_answers.find(bytes([number])) for number in range(3))
    for number in range(2):
        h.submit(front, PROMPT, claim=Claim(bytes([8, number])), **{**LONG, "logprobs": None})
    h.run_step()
    h.disconnect(front)
    assert h.core.state.scheduling.num_running <= 1
    assert len(h.core.state.frontends.orphanage.requests) == 1


def test_one_tenant_takes_no_room_from_what_is_kept_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_answers, "MOST_KEPT", 600)
    h = Harness()
    front = h.connect()
    h.start_worker()
    short = {**LONG, "logprobs": None, "max_tokens": 4}
    h.submit(front, PROMPT, claim=Claim(b"small"), tenant="small", **short)
    h.run()
    for number in range(8):
        h.submit(front, PROMPT, claim=Claim(bytes([number])), tenant="big", **LONG, salt="b")
        h.submit(front, PROMPT, claim=Claim(bytes([9, number])), tenant="big", **short)
        h.run()
    kept = h.core.state.kept_answers
    assert kept.find(b"small"), "another one's log-probabilities took its place"
    assert not kept.find(bytes([0]))
    assert kept.find(bytes([9, 7])), "the newest of who has most is kept"
    again = h.submit(h.connect(), PROMPT, claim=Claim(b"small"), tenant="small", **short)
    assert again.over


def test_one_tenant_leaves_room_for_orphans_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "MOST_ORPHANS", 6)
    h = Harness(max_num_seqs=16)
    h.start_worker()
    fronts = [h.connect(), h.connect()]
    for number in range(8):
        h.submit(fronts[0], PROMPT, claim=Claim(bytes([number])), tenant="big", **LONG)
    small = h.submit(fronts[1], PROMPT, claim=Claim(b"small"), tenant="small", **LONG)
    while not small.sequences[0].tokens:
        assert h.run_step() is not None
    for front in fronts:
        h.disconnect(front)
    orphans = h.core.state.frontends.orphanage.requests.values()
    assert sorted(each.tenant for each in orphans) == ["big"] * 4 + ["small"]
    again = h.submit(h.connect(), PROMPT, claim=Claim(b"small"), tenant="small", **LONG)
    h.run()
    is_whole(h, again)
    assert h.core.state.kept_answers.adopted == 1
