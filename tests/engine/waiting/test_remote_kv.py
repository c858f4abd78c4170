"""A prefix that is on its way from another engine: waited for, for a bounded time."""

from __future__ import annotations

import pytest

from penstock.protocol.from_frontend import KVArrived
from tests.engine.harness import Harness

ENDLESS = {"ignore_eos": True, "max_tokens": 3}


def started(h: Harness) -> list[int]:
    """First prompt tokens of the sequences that started, in order."""
    assert h.worker is not None
    return [new.tokens[0] for plan in h.worker.log for new in plan.admitted]


def test_it_waits_until_the_kv_has_come_and_holds_nobody_up() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    waiting = h.submit(front, [1, 2, 3], remote_kv_ms=5000, n=2, **ENDLESS)
    other = h.submit(front, [4, 5], **ENDLESS)
    h.run()
    assert waiting.accepted
    assert other.sequences[0].terminal is not None
    assert started(h) == [4]
    h.send(front, KVArrived(waiting.submit.request))
    h.run()
    assert started(h) == [4, 1, 1]
    assert all(score.terminal is not None for score in waiting.sequences.values())


def test_what_has_not_come_in_time_is_computed() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1, 2, 3], remote_kv_ms=2000, **ENDLESS)
    assert h.core.next_deadline() <= h.now + 2.0
    h.now += 1.9
    h.settle()
    assert h.plan is None
    h.now += 0.2
    h.settle()
    h.run()
    assert request.sequences[0].terminal is not None
    assert len(request.sequences[0].tokens) == 3


def test_it_ends_while_it_waits() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    aborted = h.submit(front, [1], remote_kv_ms=2000, **ENDLESS)
    late = h.submit(front, [2], remote_kv_ms=5000, time_left_ms=1000, **ENDLESS)
    h.abort(front, aborted)
    h.now += 1.1
    h.settle()
    ends = [request.sequences[0].terminal for request in (aborted, late)]
    assert [end and end.finish for end in ends] == ["abort", "timeout"]
    assert not h.core.state.remote_kv.num_waiting


def test_the_resumed_do_not_wait_and_neither_do_those_for_whom_there_is_no_room() -> None:
    h = Harness(max_waiting_requests=1)
    front = h.connect()
    h.start_worker()
    h.submit(front, [1], remote_kv_ms=5000, resumed=True, **ENDLESS)
    h.submit(front, [2], remote_kv_ms=5000, **ENDLESS)
    h.submit(front, [3], remote_kv_ms=5000, **ENDLESS)
    h.run()
    assert started(h) == [1, 3]


@pytest.mark.parametrize("wait", [-1, 60_001])
def test_the_wait_is_bounded(wait: int) -> None:
    h = Harness()
    request = h.submit(h.connect(), [1], remote_kv_ms=wait)
    assert request.rejected is not None
    assert "remote_kv_ms" in request.rejected.message
