"""Sequences with pictures: when these are asked for, encoded, shared and dropped."""

from __future__ import annotations

import pytest

from penstock.protocol.from_frontend import MediaLost
from penstock.protocol.from_worker import MediaFailed, Result, SlotResult
from penstock.protocol.media import Media, MediaSpan
from penstock_engine.media.entry import MediaStage
from penstock_engine.media.loads import TIMEOUT
from tests.engine.fake_media import picture, shown
from tests.engine.media.media_requests import SLOT, ask, encodings, error_of, finish_of, harness


def test_a_picture_is_asked_for_loaded_and_encoded_before_its_placeholders() -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    h.media_at_once = False
    score = ask(h, front, picture(1))
    assert len(h.asked_media) == 1
    assert not h.plans, "nothing is computed before it is there"
    h.send_media(*h.asked_media.popleft())
    assert not h.plans
    assert h.worker_answers()
    assert len(h.plans[0][0].encode) == 1
    h.run()
    assert finish_of(score) == "length"
    assert encodings(h) == 1


def test_nobody_waits_behind_who_waits_for_a_picture() -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    h.media_at_once = False
    score = ask(h, front, picture(1))
    text = h.submit(front, [1, 2, 3], max_tokens=2, ignore_eos=True)
    for _ in range(4):
        h.run_step()
    assert finish_of(text) == "length"
    assert finish_of(score) is None


@pytest.mark.parametrize("encoder_cache", [True, False])
def test_requests_with_the_same_picture_share_its_encoding(encoder_cache: bool) -> None:
    """Not their KV: their texts differ."""
    h = harness(encoder_cache=encoder_cache)
    front = h.connect()
    h.start_worker()
    for number in range(3):
        prompt = [number, *[SLOT] * 4, 6]
        score = h.submit(front, prompt, max_tokens=2, media=shown((picture(1), 1)))
        h.run()
        assert finish_of(score) is not None
    assert encodings(h) == (1 if encoder_cache else 3)


@pytest.mark.parametrize("differ", [{"tenant": "b"}, {"salt": "x"}])
def test_nothing_is_shared_across_tenants_and_salts(differ: dict[str, str]) -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    ask(h, front, picture(1))
    h.run()
    ask(h, front, picture(1), **differ)
    h.run()
    assert encodings(h) == 2


def test_a_prefix_that_is_cached_needs_no_picture() -> None:
    h = harness(rows=4, media_load_mib=1)
    front = h.connect()
    h.start_worker()
    first = ask(h, front, picture(1))
    h.run()
    ask(h, front, picture(2))  # Takes the rows of the first one.
    h.run()
    before = encodings(h)
    h.media_at_once = False
    again = ask(h, front, picture(1))
    assert not h.asked_media
    h.run()
    assert encodings(h) == before
    assert again.cached == 8
    assert again.sequences[0].tokens == first.sequences[0].tokens


def test_other_pictures_are_other_prompts() -> None:
    """Their token ids are the same: only the items tell their KV blocks apart."""
    h = harness()
    front = h.connect()
    h.start_worker()
    scores = []
    for number in range(4):
        scores.append(ask(h, front, picture(number)))
        h.run()
    assert [score.cached for score in scores] == [0, 0, 0, 0]
    assert encodings(h) == 4


def test_an_item_may_be_shown_again_and_in_parts() -> None:
    h = harness(max_num_batched_tokens=3)
    front = h.connect()
    h.start_worker()
    items = (picture(1, 5), picture(2, 2))
    spans = (
        MediaSpan(0, 1, 2),
        MediaSpan(0, 4, 3, first=2),
        MediaSpan(1, 8, 2),
        MediaSpan(0, 10, 5),
    )
    score = h.submit(front, [SLOT] * 17, media=Media(items, spans), max_tokens=3, ignore_eos=True)
    h.run()
    assert finish_of(score) == "length"
    assert encodings(h) == 2


def test_forks_share_what_one_of_them_has_computed() -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    score = ask(h, front, picture(1), n=3)
    h.run()
    assert all(s.terminal.finish == "length" for s in score.sequences.values() if s.terminal)
    assert encodings(h) == 1


@pytest.mark.parametrize("size", [100, 1_048_576, 3_000_000])
def test_chunks_come_one_by_one(size: int) -> None:
    h = harness(media_load_mib=8)
    h.by_file = False
    front = h.connect()
    h.start_worker()
    h.media_at_once = False
    score = ask(h, front, picture(1, 4, size))
    chunks = 0
    while h.asked_media:
        assert len(h.asked_media) == 1
        h.send_media(*h.asked_media.popleft())
        assert not h.asked_media, "the next chunk is asked for when this one was taken"
        chunks += 1
        assert h.worker_answers()
    assert chunks == -(-size // 1_048_576)
    h.run()
    assert finish_of(score) == "length"


def test_a_worker_on_another_host_gets_chunks() -> None:
    h = harness()
    h.reads_files = False
    front = h.connect()
    h.start_worker()
    score = ask(h, front, picture(1))
    h.run()
    assert finish_of(score) == "length"


def test_an_item_that_is_bad_ends_those_who_brought_it_and_nobody_else() -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    bad = picture(1)
    h.bad_media.add(bad.digest)
    scores = [ask(h, front, bad), ask(h, front, picture(2)), ask(h, front, bad, salt="x")]
    h.run()
    assert "it is bad" in error_of(scores[0])
    assert "it is bad" in error_of(scores[2])
    assert finish_of(scores[1]) == "length"


def test_an_item_that_is_lost_or_late_ends_its_request() -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    h.media_at_once = False
    lost, late = ask(h, front, picture(1)), ask(h, front, picture(2))
    h.send(front, MediaLost(lost.submit.request, 0))
    assert "media differs" in error_of(lost)
    h.now += TIMEOUT + 1
    h.settle()
    assert "did not arrive within" in error_of(late)


def test_another_who_needs_it_is_asked_when_the_first_leaves() -> None:
    h = harness()
    fronts = [h.connect(), h.connect()]
    h.start_worker()
    h.media_at_once = False
    first = ask(h, fronts[0], picture(1))
    second = h.submit(fronts[1], [1, *[SLOT] * 4], media=shown((picture(1), 1)), max_tokens=2)
    assert len(h.asked_media) == 1, "one of them is enough"
    h.abort(fronts[0], first)
    assert [front for front, _ in h.asked_media] == fronts
    h.asked_media.popleft()
    h.run()
    assert finish_of(second) is not None


def test_a_new_worker_gets_everything_anew() -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    score = ask(h, front, picture(1))
    h.run_step()
    h.kill_worker()
    h.media_at_once = False
    h.start_worker(life="another")
    assert len(h.asked_media) == 1
    h.run()
    assert finish_of(score) == "length"
    assert encodings(h) == 1


def test_two_never_hold_half_of_what_both_need() -> None:
    """Each shows its first picture again behind the second, so both are needed at a time."""
    h = harness(rows=8, max_num_batched_tokens=5, max_num_seqs=2)
    front = h.connect()
    h.start_worker()
    scores = []
    for number in range(2):
        one, other = picture(2 * number), picture(2 * number + 1)
        media = Media((one, other), (MediaSpan(0, 1, 4), MediaSpan(1, 6, 4), MediaSpan(0, 11, 4)))
        prompt = [number, *[SLOT] * 15]
        scores.append(h.submit(front, prompt, media=media, max_tokens=2, ignore_eos=True))
    h.run()
    assert [finish_of(score) for score in scores] == ["length", "length"]


def test_what_can_never_run_is_refused_at_once() -> None:
    h = harness(rows=6)
    front = h.connect()
    h.start_worker()
    tall = ask(h, front, picture(1, 7))
    assert tall.rejected is not None
    assert "7 embeddings" in tall.rejected.message
    large = ask(h, front, picture(1, 4, 2_000_000))
    assert large.rejected is not None
    assert "--media-load-mib" in large.rejected.message


def test_a_model_without_an_encoder_refuses_media() -> None:
    h = harness(rows=0)
    front = h.connect()
    early = ask(h, front, picture(1))
    h.start_worker()
    late = ask(h, front, picture(1))
    assert "takes no images" in error_of(early)
    assert late.rejected is not None
    assert "takes no images" in late.rejected.message


@pytest.mark.parametrize(
    ("media", "words"),
    [
        (Media((), ()), "not 0"),
        (Media((picture(1),), ()), "1 to"),
        (Media((picture(1), picture(2)), (MediaSpan(0, 0, 4),)), "item 1"),
        (Media((picture(1),), (MediaSpan(1, 0, 4),)), "refers to item 1"),
        (Media((picture(1),), (MediaSpan(0, 17, 4),)), "the prompt's 20"),
        (Media((picture(1),), (MediaSpan(0, -1, 4),)), "tokens -1"),
        (Media((picture(1),), (MediaSpan(0, 0, 4, first=1),)), "has 4"),
        (Media((picture(1),), (MediaSpan(0, 0, 0),)), "tokens of a span"),
        (Media((picture(1),), (MediaSpan(0, 5, 4), MediaSpan(0, 8, 4))), "begin at 9"),
        (Media((picture(1), picture(1)), (MediaSpan(0, 0, 4), MediaSpan(1, 4, 4))), "twice"),
    ],
)
def test_media_that_make_no_sense_are_refused(media: Media, words: str) -> None:
    h = harness()
    front = h.connect()
    h.start_worker()
    score = h.submit(front, [SLOT] * 20, media=media)
    assert score.rejected is not None
    assert score.rejected.code == "invalid"
    assert words in score.rejected.message


def test_an_item_that_can_not_be_encoded_ends_its_request_alone() -> None:
    h = harness(max_steps_in_flight=1)
    front = h.connect()
    h.start_worker()
    bad, good = ask(h, front, picture(1)), ask(h, front, picture(2), salt="x")
    assert h.worker is not None
    plan = h.plans[0][0]
    name = plan.encode[0]
    h.worker_says(MediaFailed(name, "it is too bright", "unfit"))
    h.worker_says(MediaFailed(name, "another rank says so too", "unfit"))
    h.plans.popleft()
    h.worker.execute(plan)
    h.worker.media.fails(name)
    h.worker_says(Result(1, [SlotResult(work.slot, error="no rows") for work in plan.work[:1]]))
    h.run()
    assert "too bright" in error_of(bad)
    assert finish_of(good) == "length"
    h.run()
    retry = ask(h, front, picture(1))
    h.run()
    assert finish_of(retry) == "length"


def test_who_finds_no_kv_blocks_leaves_nothing_to_be_encoded() -> None:
    """It would take the step's share from others, for ever if no plan is ever made of it."""
    options = {"block_size": 1, "max_num_batched_tokens": 3, "max_steps_in_flight": 2}
    h = harness(max_encoded_rows=5, scheduling_policy="priority", **options)
    front = h.connect()
    h.start_worker(38)
    others = [
        h.submit(front, [number, 21], max_tokens=40, ignore_eos=True, priority=5)
        for number in range(2)
    ]
    h.run_step()
    h.run_step()
    prompt = [*range(12), *[SLOT] * 4, 6]
    first = h.submit(front, prompt, media=shown((picture(1), 12)), max_tokens=4)
    books, waited = h.core.state.media, False
    while first.sequences[0].terminal is None:
        assert not books.encodings.encode, "no plan has it encoded, and nobody else can have more"
        entries = books._books.entries.values()
        waited = waited or any(e.pins and e.stage is MediaStage.LOADED for e in entries)
        assert h.run_step() is not None
    assert waited, "it has come to its picture, and found no blocks"
    for score in others:
        h.abort(front, score)
    h.run()
    assert encodings(h) == 1


def test_workers_are_sent_no_more_than_they_hold() -> None:
    """Also before the steps are settled that encode; a worker counts what those have not begun."""
    h = harness(max_num_seqs=8, media_load_mib=64, max_steps_in_flight=3, max_encoded_rows=8)
    h.media_bytes = 3 * 104_096 + 500
    front = h.connect()
    h.start_worker()
    scores = [ask(h, front, picture(number)) for number in range(12)]
    most = 0
    for _ in range(500):
        assert h.worker is not None
        held = sum(item.size for item in h.worker.media.loaded.values())
        most = max(most, held)
        assert held <= h.media_bytes
        if h.run_step() is None and not h.answer_media():
            break
    assert [finish_of(score) for score in scores] == ["length"] * 12
    assert most == 300_000
    large = ask(h, front, *map(picture, range(4)))
    assert large.rejected is not None
    assert str(h.media_bytes) in large.rejected.message
    h.kill_worker()
    assert h.core.state.media.loads.capacity == 64 * 2**20
