"""Requests whose media haven't come yet."""

from __future__ import annotations

from penstock.protocol.from_worker import MediaReady
from tests.engine.fake_media import picture
from tests.engine.media.media_requests import ask, encodings, finish_of, harness


def test_what_waits_for_pictures_counts_as_waiting() -> None:
    h = harness(max_waiting_requests=3, max_num_seqs=1)
    front = h.connect()
    h.start_worker()
    h.media_at_once = False
    scores = [ask(h, front, picture(number)) for number in range(6)]
    assert h.core.num_waiting == 3
    assert [score.rejected is None for score in scores] == [True] * 3 + [False] * 3
    for score in scores[:3]:
        h.abort(front, score)
    assert h.core.num_waiting == 0
    assert not h.core.state.media._books.entries


def test_few_items_are_asked_for_however_many_requests_wait() -> None:
    """Their bytes have a budget."""
    h = harness(max_num_seqs=1)
    front = h.connect()
    h.start_worker()
    h.media_at_once = False
    scores = [ask(h, front, picture(number, 4, 400_000)) for number in range(20)]
    assert len(h.asked_media) == 2
    h.run()
    assert [finish_of(score) for score in scores] == ["length"] * 20


def test_an_old_answer_is_no_answer() -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    h.media_at_once = False
    score = ask(h, front, picture(1))
    h.worker_says(MediaReady("0" * 64))
    h.worker_says(MediaReady(picture(1).name))
    assert not h.plans
    asked = h.asked_media.popleft()
    h.send_media(*asked)
    h.send_media(*asked)
    h.run()
    assert finish_of(score) == "length"


def test_a_timeline_says_what_became_of_media() -> None:
    h = harness(encoder_cache=True)
    front = h.connect()
    h.start_worker()
    h.media_at_once = False
    score = ask(h, front, picture(1), timeline=True)
    h.now += 2.0
    h.run()
    terminal = score.sequences[0].terminal
    assert terminal is not None
    assert terminal.timeline is not None
    told = terminal.timeline
    assert (told.media, told.encoded_items, told.cached_items) == (2.0, 1, 0)
    assert told.media_bytes == 100_000
    assert front.status is not None
    h.now += 5.0
    h.settle()
    assert (front.status.media_items_encoded, front.status.media_bytes) == (1, 100_000)


def test_a_deadline_counts_while_a_picture_is_waited_for() -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    h.media_at_once = False
    score = ask(h, front, picture(1), time_left_ms=1000)
    h.now += 2.0
    h.settle()
    assert finish_of(score) == "timeout"
    assert h.core.num_waiting == 0


def test_a_request_goes_on_elsewhere_with_its_media() -> None:
    """Its front end submits it again, to an engine core that has nothing of it."""
    first = harness()
    front = first.connect()
    first.start_worker()
    score = ask(first, front, picture(1))
    for _ in range(3):
        first.run_step()
    h = harness()
    emitted = score.sequences[0].tokens
    assert 0 < len(emitted) < 4
    front = h.connect()
    h.start_worker()
    again = ask(h, front, picture(1), emitted={0: list(emitted)})
    h.run()
    assert finish_of(again) == "length"
    assert encodings(h) == 1
