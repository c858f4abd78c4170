"""A prefix whose KV is elsewhere, and on its way: waited for, for a bounded time."""

from __future__ import annotations

from typing import Any

from tests.engine.fake_disk import FakeDisk
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore

PROMPT = list(range(3, 33))
"""Seven full blocks, and a little."""


def apart(blocks: int | None = None, **options: Any) -> tuple[Harness, Front]:
    """A worker that has nothing of PROMPT in its pool, and all of it in its store, which answers
    when it is told to. blocks: of the pool."""
    h = Harness(**options)
    h.disk = FakeDisk()
    front = h.connect()
    h.start_worker()
    ask(h, front, PROMPT)
    h.run()
    h.kill_worker()
    h.start_worker(*(() if blocks is None else (blocks,)))
    h.disk_at_once = False
    return h, front


def ask(h: Harness, front: Front, prompt: list[int], **fields: Any) -> RequestScore:
    return h.submit(front, prompt, **{"ignore_eos": True, "max_tokens": 3, **fields})


def started(h: Harness) -> list[int]:
    """First prompt tokens of the sequences that this worker has started, in order."""
    assert h.worker is not None
    return [new.tokens[0] for plan in h.worker.log for new in plan.admitted]


def compute(h: Harness) -> None:
    """Whatever can be computed while the store is silent."""
    while h.run_step() is not None:
        pass


def test_it_waits_until_the_kv_has_come_and_holds_nobody_up() -> None:
    h, front = apart()
    waiting = ask(h, front, PROMPT, n=2)
    other = ask(h, front, [31, 30])
    compute(h)
    assert waiting.accepted
    assert other.sequences[0].terminal is not None
    assert started(h) == [31]
    h.run()  # The store answers: so much is there, and here it is.
    assert started(h) == [31, 3, 3]
    assert waiting.cached == 28
    assert all(score.terminal is not None for score in waiting.sequences.values())


def test_what_has_not_come_in_time_is_computed() -> None:
    h, front = apart()
    request = ask(h, front, PROMPT)
    until = h.core.state.remote_kv.next_deadline()
    assert h.now < until <= h.now + 5.0
    assert h.core.next_deadline() <= until
    h.now = until - 0.01
    h.settle()
    assert h.plan is None
    h.now = until
    h.settle()
    compute(h)
    assert request.sequences[0].terminal is not None
    assert len(request.sequences[0].tokens) == 3
    assert request.cached == 0


def test_it_ends_while_it_waits() -> None:
    h, front = apart()
    aborted = ask(h, front, PROMPT)
    late = ask(h, front, PROMPT[:-1], time_left_ms=100)
    h.abort(front, aborted)
    h.now += 0.11
    h.settle()
    ends = [request.sequences[0].terminal for request in (aborted, late)]
    assert [end and end.finish for end in ends] == ["abort", "timeout"]
    assert not h.core.state.remote_kv.num_waiting


def test_what_is_resumed_finds_what_it_has_emitted_too() -> None:
    h, front = apart()
    h.disk_at_once = True
    short = PROMPT[:12]
    whole = ask(h, front, short, max_tokens=20).sequences[0]
    h.run()
    h.kill_worker()
    h.start_worker()
    read = h.core.state.counts.disk_blocks_read
    ask(h, front, short, max_tokens=20, emitted={0: whole.tokens[:17]}, resumed=True)
    h.run()
    assert h.core.state.counts.disk_blocks_read - read == (12 + 17 - 1) // 4


def test_those_for_whom_there_is_no_room_do_not_wait() -> None:
    h, front = apart(max_waiting_requests=1)
    first = ask(h, front, PROMPT)
    second = ask(h, front, PROMPT[:-1])
    compute(h)
    assert first.sequences[0].terminal is None
    assert second.sequences[0].terminal is not None


def test_a_fetch_takes_half_of_the_blocks_that_are_free() -> None:
    """The other half is for who starts meanwhile: five of the prompt's seven blocks are read."""
    h, front = apart(blocks=10)
    waiting = ask(h, front, PROMPT)
    h.run()
    assert waiting.cached == 20
