"""Prompts that another engine core computes first: what is fetched of them meanwhile, and what
isn't."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from penstock.protocol.from_frontend import MAX_EXPECT_SECONDS, ExpectPrompt, ForgetPrompt
from penstock.protocol.to_worker import FetchKV, LookUpKV
from penstock_engine.kv.pool import BrokenState
from penstock_engine.waiting import expected_prompts
from penstock_engine.waiting.expected_prompts import (
    LOOK_SECONDS,
    MOST_LOOK_SECONDS,
    ExpectedPrompts,
)
from tests.engine.fake_disk import FakeDisk
from tests.engine.harness import Harness
from tests.engine.scores import Front

PROMPT = [3 + at % 30 for at in range(41)]
BLOCKS = 10
"""Full ones before its last token."""
SIZE = 4


def harness(blocks: int = 100, **options: Any) -> tuple[Harness, Front]:
    h = Harness(block_size=SIZE, max_model_len=64, prefix_caching=True, **options)
    h.disk = FakeDisk(others=[FakeDisk(shared={})])
    h.start_worker(blocks)
    return h, h.connect()


def computed(h: Harness, prompt: list[int], count: int, salt: str = "") -> None:
    """Another engine core's worker has the first blocks of the prompt by now."""
    there = Harness(block_size=SIZE, max_model_len=64, prefix_caching=True)
    assert h.disk is not None
    [other] = h.disk.others
    there.disk = FakeDisk(shared=other.shared)
    there.start_worker(100)
    there.submit(there.connect(), prompt[: count * SIZE + 1], max_tokens=1, salt=salt)
    there.run()
    h.join(there)


def expect(h: Harness, front: Front, number: int = 1, prompt: list[int] = PROMPT) -> None:
    h.send(front, ExpectPrompt(number, prompt))


def look(h: Harness) -> None:
    h.now += MOST_LOOK_SECONDS
    h.settle()


def found(h: Harness) -> int:
    """Blocks of the prompt that a request would find."""
    assert h.disk is not None
    return h.disk.num_fetched


def test_blocks_are_fetched_as_they_come_and_the_request_finds_them() -> None:
    h, front = harness()
    expect(h, front)
    look(h)
    assert found(h) == 0
    for count in (4, 9, 10):
        computed(h, PROMPT, count)
        look(h)
    # One block alone isn't worth a question.
    assert found(h) == 9
    pool = h.core.state.scheduling.pool
    assert pool is not None
    assert pool.num_free == pool.num_blocks
    score = h.submit(front, PROMPT, max_tokens=2, timeline=True)
    h.run()
    assert h.num_reused == 9 * SIZE
    assert score.over
    assert h.core.state.counts.prefetched["disk"] == 9


def test_a_request_that_comes_in_mid_fetch_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_engine.waiting.disk_kv.MAX_PULLED_BLOCKS", 4)
    h, front = harness()
    h.disk_at_once = False
    computed(h, PROMPT, BLOCKS)
    expect(h, front)
    look(h)
    assert h.answer_disk()  # The first four are there, and are read.
    h.submit(front, PROMPT, max_tokens=2)
    assert h.core.state.remote_kv.num_waiting
    while h.answer_disk():
        pass
    h.run()
    assert h.num_reused == BLOCKS * SIZE
    assert h.core.state.counts.prefetched["disk"] == 4


def test_what_is_forgotten_or_late_is_fetched_no_more() -> None:
    h, front = harness()
    for number in (1, 2):
        expect(h, front, number)
    h.send(front, ForgetPrompt(1))
    h.send(front, ForgetPrompt(7))
    book = h.core.state.expected_prompts
    assert len(book) == 1
    h.now += MAX_EXPECT_SECONDS
    h.settle()
    assert not len(book)
    assert book.next_deadline() == float("inf")
    computed(h, PROMPT, BLOCKS)
    look(h)
    assert found(h) == 0


def test_looks_that_bring_nothing_become_rare() -> None:
    book = ExpectedPrompts()
    book.add(b"s", 1, [b"key"], 1, 0.0)
    [prompt] = book.due(LOOK_SECONDS)
    looks = [LOOK_SECONDS]
    while looks[-1] < 10:
        looks.append(book.next_deadline())
        assert book.due(looks[-1]) == [prompt]
    pauses = [after - before for before, after in itertools.pairwise(looks)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8] + [MOST_LOOK_SECONDS] * (len(pauses) - 4))
    prompt.came()
    assert book.next_deadline() == 0.0
    assert book.due(11.0) == [prompt]
    assert book.next_deadline() == 11.0 + LOOK_SECONDS


def test_a_front_end_that_is_gone_expects_nothing() -> None:
    h, front = harness()
    expect(h, front)
    h.disconnect(front)
    assert not len(h.core.state.expected_prompts)


def test_other_salts_blocks_are_not_fetched() -> None:
    h, front = harness()
    computed(h, PROMPT, BLOCKS, salt="x")
    expect(h, front)
    look(h)
    assert found(h) == 0


def test_nothing_is_fetched_where_room_is_scarce() -> None:
    """Not even where all of it would fit: running sequences may need the rest."""
    h, front = harness(blocks=2 * BLOCKS - 1)
    computed(h, PROMPT, BLOCKS)
    expect(h, front)
    look(h)
    assert found(h) == 0


def test_no_more_is_read_than_the_prompt_has() -> None:
    """Where others need the blocks at once, they aren't read again and again."""
    h, front = harness(blocks=2 * BLOCKS)
    computed(h, PROMPT, BLOCKS)
    expect(h, front)
    look(h)
    assert found(h) == BLOCKS
    for seed in range(4):
        h.submit(front, [3 + (7 * seed + at * at) % 30 for at in range(61)], max_tokens=2)
        h.run()
        look(h)
    assert found(h) == BLOCKS


def test_what_others_are_about_to_write_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request's question may be held; one that is asked again and again would hold up all."""
    h, front = harness()
    asked: list[LookUpKV | FetchKV] = []
    assert h.worker is not None
    hears = h.worker.reader.hears

    def heard(message: LookUpKV | FetchKV, sent: int) -> None:
        asked.append(message)
        hears(message, sent)

    monkeypatch.setattr(h.worker.reader, "hears", heard)
    expect(h, front)
    look(h)
    h.submit(front, PROMPT)
    assert [each.waits for each in asked if isinstance(each, LookUpKV)] == [False, True]


@pytest.mark.parametrize("prompt", [[], [3] * 65, [3, -1], [3, 10**6]])
def test_what_can_be_no_prompt_ends_the_session(prompt: list[int]) -> None:
    h, front = harness()
    expect(h, front, prompt=prompt)
    assert "a prompt that is expected has 1 to 64 tokens below" in (front.ended or "")


def test_the_book_is_bounded_and_says_where_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_prompts, "MAX_EXPECTED_KEYS", 10)
    monkeypatch.setattr(expected_prompts, "MAX_EXPECTED_PROMPTS", 3)
    book, keys = ExpectedPrompts(), [bytes([n]) for n in range(10)]
    for number, count in enumerate((6, 5, 4, 0)):
        book.add(b"s", number, keys[:count], 1, 0.0)
    assert len(book) == 2  # Without the second, for which there was no room, and the empty one.
    for number in itertools.chain(range(9), (0, 2)):
        book.forget(b"s", number)
    for number in range(5):
        book.add(b"s", number, keys[:1], 1, 0.0)
    assert len(book) == 3
    book.check([b"s"])
    with pytest.raises(BrokenState, match="of a front end that is gone"):
        book.check([])
