"""Encodings that are divided over steps."""

from __future__ import annotations

from math import inf

import pytest

from penstock.protocol.from_worker import MediaFailed, Result
from penstock_engine.media.encoding_shares import UNKNOWN, EncoderPace
from penstock_engine.policies.pace import StepPace
from tests.engine.fake_media import picture, shown
from tests.engine.harness import Harness
from tests.engine.media.media_requests import SLOT, ask, encodings, error_of, finish_of, harness
from tests.engine.scores import Front


def divided(work: int = 100, **options: object) -> tuple[Harness, Front]:
    """A worker whose items take `work` for each row: a step encodes 100 while nothing is known."""
    h = harness(**options)
    h.media_work = work
    front = h.connect()
    h.start_worker()
    return h, front


def test_a_long_encoding_is_divided_and_others_go_on() -> None:
    h, front = divided(max_steps_in_flight=1)
    text = h.submit(front, [1, 2, 3], max_tokens=20, ignore_eos=True)
    h.run_step()
    whole = ask(h, front, picture(1))
    parts = []
    while not h.worker.media.encoded:
        plan = h.plans[0][0]
        parts += [part.until for part in plan.partly]
        before = len(text.sequences[0].tokens)
        h.run_step()
        assert len(text.sequences[0].tokens) == before + 1
    assert parts == [100, 200, 300]
    h.run()
    assert finish_of(whole) == "length"
    assert encodings(h) == 1


def test_a_prompt_that_begins_with_a_long_encoding_holds_nobody_up() -> None:
    h, front = divided(max_steps_in_flight=1)
    first = h.submit(front, [SLOT] * 4 + [6], media=shown((picture(1), 0)), max_tokens=2)
    text = h.submit(front, [1, 2, 3], max_tokens=2, ignore_eos=True)
    h.run_step()
    assert not text.sequences[0].tokens, "the first step was sent before it came"
    h.run_step()
    assert text.sequences[0].tokens
    assert not first.sequences[0].tokens
    h.run()
    assert finish_of(first) is not None


def test_one_encoding_at_a_time_is_begun() -> None:
    h, front = divided(max_steps_in_flight=2)
    scores = [ask(h, front, picture(number)) for number in range(5)]
    h.run()
    assert [finish_of(score) for score in scores] == ["length"] * 5
    assert h.worker is not None
    assert h.worker.media.num_parts == 15


def test_what_nobody_needs_any_more_is_given_up() -> None:
    h, front = divided(max_steps_in_flight=1, max_num_seqs=1)
    first, second = ask(h, front, picture(1)), ask(h, front, picture(2))
    h.run_step()
    assert h.worker is not None
    begun = h.worker.media.begun
    assert begun is not None
    h.abort(front, first)
    h.run()
    assert finish_of(second) == "length"
    assert encodings(h) == 1
    assert begun[0].name not in h.worker.media.encoded


def test_a_worker_that_dies_of_an_encoding_accuses_who_needs_it() -> None:
    """Also in a step that computes no tokens of it; and it runs alone from then on."""
    h, front = divided(max_steps_in_flight=1)
    text = h.submit(front, [1, 2, 3], max_tokens=30, ignore_eos=True)
    h.run_step()
    bad = ask(h, front, picture(1))
    while not (h.plans[0][0].partly and len(h.plans[0][0].work) == 1):
        h.run_step()
    h.kill_worker()
    h.start_worker()
    for _ in range(200):
        plan = h.plans[0][0] if h.plans else None
        if finish_of(bad) is not None:
            break
        if plan is not None and (plan.partly or plan.encode):
            assert not plan.work or len(plan.work) == 1, "a suspect has its steps to itself"
            h.kill_worker()
            h.start_worker()
        elif h.run_step() is None:
            h.answer_media()
    assert finish_of(bad) == "error"
    h.run()
    assert finish_of(text) == "length"


def test_an_encoding_that_fails_halfway_ends_its_request_alone() -> None:
    h, front = divided(max_steps_in_flight=1)
    bad, good = ask(h, front, picture(1)), ask(h, front, picture(2), salt="x")
    while h.plans[0][0].work:
        h.run_step()
    assert h.worker is not None
    media, (plan, _) = h.worker.media, h.plans.popleft()
    assert media.begun is not None
    name, media.begun = media.begun[0].name, None
    media.failed.add(name)
    h.worker_says(MediaFailed(name, "it is too bright", "unfit"))
    h.worker.last_step += 1
    h.worker_says(Result(plan.step, []))
    assert "too bright" in error_of(bad)
    h.run()
    assert finish_of(good) == "length"
    again = ask(h, front, picture(1))
    h.run()
    assert finish_of(again) == "length"


def test_a_step_encodes_what_its_time_allows() -> None:
    """Once it is known what that takes: five milliseconds beside decodes, a tenth of a second
    without."""
    pace, steps = EncoderPace(), StepPace(2.0)
    assert pace.within(steps.aside(1)) == pace.within(steps.aside(0)) == UNKNOWN
    pace.observe(1000, 0.01)
    assert round(pace.within(steps.aside(1))) == 500
    assert round(pace.within(steps.aside(0))) == 10_000
    for _ in range(20):
        steps.observe(4, 4, 0.02)
    assert round(pace.within(steps.aside(4))) == 2000, "as long again as the decodes"
    assert pace.within(StepPace(0.0).aside(4)) == inf


@pytest.mark.parametrize("decodes", [0, 1])
def test_a_machine_that_was_held_up_once_is_not_taken_for_slow_for_ever(decodes: int) -> None:
    """Its first step may have read weights from a disk. What is learnt of it is forgotten again by
    the steps that follow, however little they hold."""
    pace, steps = EncoderPace(), StepPace(2.0)
    pace.observe(UNKNOWN, 60.0)
    for _ in range(60):
        work = max(int(pace.within(steps.aside(decodes))), 1)
        pace.observe(work, work * 1e-5)
    assert pace.within(steps.aside(decodes)) > 0.9 * steps.aside(decodes) / 1e-5
