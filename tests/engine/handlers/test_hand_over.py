"""An engine core that leaves hands what is open to others, with its KV."""

from __future__ import annotations

from penstock_engine.sessions.drain import KEPT_SECONDS
from tests.engine.fake_disk import FakeDisk
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore

PLACE = "ipc:///nowhere/kv"
LONG = {"max_tokens": 40, "ignore_eos": True}


def draining(**options: str | None) -> tuple[Harness, Front, RequestScore]:
    """One with a stream that has come some way."""
    h = Harness(**{"kv_endpoint": PLACE, **options})
    h.disk = FakeDisk()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [3, 4, 5, 6, 8] * 4, **LONG)
    for _ in range(12):
        h.run_step()
    h.core.drain(h.now)
    h.settle()
    return h, front, request


def told(h: Harness, front: Front) -> bool:
    h.settle()
    assert front.status is not None
    assert front.status.draining
    return front.status.hands_over


def test_what_is_open_has_its_time_first() -> None:
    h, front, request = draining()
    assert not told(h, front)
    assert h.core.next_deadline() <= h.now + 1.0
    h.run()
    assert request.sequences[0].terminal is not None
    h.now += 1.0
    assert not told(h, front)
    assert h.core.may_leave(h.now)


def test_what_goes_on_elsewhere_has_its_kv_kept_and_time_to_fetch_it() -> None:
    h, front, request = draining()
    assert h.disk is not None
    h.disk.kept.clear()  # What was kept long ago has made room.
    h.now += 1.0
    assert told(h, front)
    assert not h.core.may_leave(h.now)
    ended = dict(h.core.state.counts.ended)
    h.take_away(front, request)
    h.run()
    tokens = 20 + len(request.sequences[0].tokens)
    assert len(h.disk.kept) == (tokens - 1) // 4
    assert h.core.state.counts.handed_over == 1
    assert h.core.state.counts.ended == ended
    assert not h.core.has_open_requests
    assert not h.core.may_leave(h.now)
    assert h.core.may_leave(h.now + KEPT_SECONDS)


def test_what_is_not_taken_away_ends_here() -> None:
    h, front, request = draining()
    h.now += 1.0
    assert told(h, front)
    h.run()
    assert request.sequences[0].terminal is not None
    assert len(request.sequences[0].tokens) == 40
    assert h.core.may_leave(h.now)


def test_without_an_endpoint_nothing_is_handed_over() -> None:
    h, front, _ = draining(kv_endpoint=None)
    h.now += 10.0
    assert not told(h, front)
    h.run()
    assert h.core.may_leave(h.now)
