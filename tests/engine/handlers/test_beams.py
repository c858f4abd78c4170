"""Beam searches: one request, however many beams it has and steps it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from penstock.config.settings import LimitSettings
from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Abort, Advance, OpenSequence, Submit
from penstock.protocol.to_frontend import SequenceOutput
from tests.engine.fake_model import next_token
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore, SequenceScore
from tests.engine.small_facts import facts

ONE_TOKEN = Stopping(max_tokens=1, ignore_eos=True)
SAMPLING = TokenSampling(seed=3, temperature=0.0, logprobs=4)
PROMPT = [5, 6, 7, 8, 9, 10]


@dataclass
class Beams(RequestScore):
    """What came of each beam in the present step."""

    step: dict[int, SequenceOutput] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """It stays open between its steps."""
        return self.rejected is not None

    def take(self, output: SequenceOutput, **_: object) -> None:
        if self.rejected is not None:
            return  # What was still open of a search that was refused has ended.
        assert self.accepted
        assert output.sequence not in self.step
        self.step[output.sequence] = output


def search(
    h: Harness, front: Front, *, number: int = 1, beams: int = 4, **options: object
) -> Beams:
    opened = options.pop("sequences", [OpenSequence(0)])
    stopping = options.pop("stopping", ONE_TOKEN)
    submit = Submit(number, "beams", PROMPT, opened, SAMPLING, stopping, beams=beams, **options)
    score = front.requests[number] = Beams(submit)
    score.sequences = {index: SequenceScore([]) for index in range(beams)}
    h.send(front, submit)
    return score


def advance(h: Harness, front: Front, score: Beams, beams: list[list[int]]) -> None:
    score.step.clear()
    opened = [OpenSequence(index, emitted) for index, emitted in enumerate(beams)]
    h.send(front, Advance(score.submit.request, opened))


def expected(emitted: list[int], index: int) -> list[int]:
    return [next_token(PROMPT, emitted, index, SAMPLING, frozenset())]


def test_each_step_gives_each_beam_one_token() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    score = search(h, front)
    h.run()
    assert score.step[0].tokens == expected([], 0)
    for beams in ([[1], [2], [3], [4]], [[1, 1], [3, 2]], [[3, 2, 1], [1, 1, 2], [9, 9, 9]]):
        advance(h, front, score, beams)
        h.run()
        got = [score.step[index].tokens for index in range(len(beams))]
        assert got == [expected(emitted, index) for index, emitted in enumerate(beams)]
        assert all(output.finish == "length" for output in score.step.values())
    h.send(front, Abort(1))
    assert not h.core.has_open_requests
    assert h.core.state.scheduling.pool is not None
    assert h.core.state.scheduling.pool.num_used == 0


def test_a_prompt_is_hashed_once_however_many_beams_and_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock_engine.request import request

    hashed: list[bytes] = []
    original = request.block_key

    def counting(parent: bytes, tokens: object, contents: bytes) -> bytes:
        hashed.append(parent)
        return original(parent, tokens, contents)

    monkeypatch.setattr(request, "block_key", counting)
    h = Harness(block_size=2)
    front = h.connect()
    h.start_worker()
    score = search(h, front)
    h.run()
    for _ in range(5):
        advance(h, front, score, [[1], [2], [3], [4]])
        h.run()
    assert len(hashed) == len(PROMPT) // 2
    h.send(front, Abort(1))


def test_a_search_counts_as_one_request_of_its_tenant() -> None:
    h = Harness(tenants="*:max_requests=1")
    front = h.connect()
    h.start_worker()
    first = search(h, front)
    h.run()
    advance(h, front, first, [[1], [2], [3], [4]])
    h.run()
    assert len(first.step) == 4, "its own beams are not refused"
    second = search(h, front, number=2)
    assert second.rejected is not None
    assert second.rejected.code == "limited"
    h.send(front, Abort(1))
    assert search(h, front, number=3).accepted
    h.run()
    h.send(front, Abort(3))


def test_the_queue_counts_all_the_beams_that_may_come() -> None:
    h = Harness(max_waiting_requests=4)
    front = h.connect()
    h.submit(front, [1])
    wide = search(h, front, number=90, beams=16)
    assert wide.rejected is not None
    assert "sequences are waiting, the maximum is 16" in wide.rejected.message
    assert search(h, front, number=91, beams=4).accepted


def test_what_was_accepted_goes_on_while_the_engine_core_drains() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    score = search(h, front)
    h.run()
    h.core.drain(h.now)
    assert h.core.has_open_requests
    advance(h, front, score, [[1]])
    h.run()
    assert score.step[0].finish == "length"
    refused = search(h, front, number=2)
    assert refused.rejected is not None
    h.send(front, Abort(1))
    assert not h.core.has_open_requests


def test_the_deadline_of_a_search_ends_the_step_that_it_meets_and_all_later_ones() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    score = search(h, front, time_left_ms=1000)
    score.deadline = h.now + 1
    h.run()
    h.now += 1.1
    h.settle()
    advance(h, front, score, [[1], [2]])
    assert [output.finish for output in score.step.values()] == ["timeout"] * 2
    h.send(front, Abort(1))
    assert not h.core.has_open_requests


def test_a_search_that_is_resumed_begins_with_its_beams() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    beams = [OpenSequence(0, [1, 2]), OpenSequence(1, [3, 4])]
    score = search(
        h, front, sequences=beams, stopping=Stopping(max_tokens=3, ignore_eos=True), resumed=True
    )
    h.run()
    assert score.step[0].tokens == expected([1, 2], 0)
    assert score.step[1].tokens == expected([3, 4], 1)
    h.send(front, Abort(1))


def test_a_worker_that_dies_costs_a_search_nothing() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    score = search(h, front)
    h.run()
    advance(h, front, score, [[1], [2], [3]])
    h.kill_worker()
    h.start_worker()
    h.run()
    assert [score.step[i].tokens for i in range(3)] == [expected([i + 1], i) for i in range(3)]
    h.send(front, Abort(1))


def test_a_front_end_that_leaves_takes_its_search_along() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    search(h, front)
    h.run()
    h.disconnect(front)
    assert not h.core.has_open_requests
    assert h.core.state.frontends.open_requests.count("") == 0


@pytest.mark.parametrize(
    ("beams", "complaint"),
    [
        ([[1]] * 5, "allowed: 1 to 4"),
        ([], "allowed: 1 to 4"),
        ([[40]], "not in the vocabulary"),
        ([[1] * 58], "one more follows"),
    ],
)
def test_a_step_that_cannot_be_ends_the_search_with_a_reason(
    beams: list[list[int]], complaint: str
) -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    score = search(h, front)
    h.run()
    score.accepted = False  # For the harness: what was accepted is refused after all.
    advance(h, front, score, beams)
    assert score.rejected is not None
    assert complaint in score.rejected.message
    assert not h.core.has_open_requests


def test_a_step_before_the_last_has_ended_is_refused() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    score = search(h, front)
    score.accepted = False
    h.send(front, Advance(1, [OpenSequence(0, [1])]))
    assert score.rejected is not None
    assert "1 of its sequences are open" in score.rejected.message


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"beams": 129}, "beams"),
        ({"beams": -1}, "beams"),
        ({"beams": 1, "sequences": [OpenSequence(0), OpenSequence(1)]}, "begins with 2"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options: dict[str, object], complaint: str) -> None:
    h = Harness()
    score = search(h, h.connect(), **options)
    assert score.rejected is not None
    assert score.rejected.code == "invalid"
    assert complaint in score.rejected.message


def test_beams_that_have_grown_beyond_the_bound_end_the_search_with_a_reason() -> None:
    h = Harness(facts(limits=LimitSettings(max_request_tokens=40)))
    front = h.connect()
    h.start_worker()
    score = search(h, front)
    h.run()
    advance(h, front, score, [[1], [2], [3], [4]])
    h.run()
    score.accepted = False
    advance(h, front, score, [[1] * 8, [2] * 8, [3] * 8])
    assert score.rejected is not None
    assert "45 tokens in total; a request may have at most 40" in score.rejected.message
