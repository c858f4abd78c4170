"""A core that is watched, and checks of what is shown of it against what it holds."""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock.protocol.from_frontend import Watch
from penstock.protocol.live import LONGEST_LEASE, MAX_CELLS, MAX_QUEUE_ROWS, BlockView, Snapshot
from penstock.protocol.to_frontend import ToFrontend
from penstock_engine.core import EngineCore
from penstock_engine.live.view import LiveView
from penstock_engine.request.states import SequenceState
from tests.engine.harness import Harness
from tests.engine.walker import Walker
from tests.engine.wire import over_the_wire


class ShownCore:
    """A core with a live view beside it, fed as the process feeds it."""

    def __init__(self, core: EngineCore, now: float) -> None:
        self._core = core
        self.view = LiveView(core, now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def frontend_opened(self, session: bytes, message: Any, now: float) -> None:
        self._core.frontend_opened(session, message, now)
        self.view.frontend_opened(session, now)

    def frontend_received(self, session: bytes, message: Any, now: float) -> None:
        if not self.view.takes(session, message, now):
            self._core.frontend_received(session, message, now)

    def frontend_ended(self, session: bytes, reason: str, now: float) -> None:
        self._core.frontend_ended(session, reason, now)
        self.view.frontend_ended(session)

    def worker_received(self, session: bytes, message: Any, now: float) -> None:
        self._core.worker_received(session, message, now)
        self.view.worker_said(message, now)

    def step(self, now: float) -> Any:
        effects = self._core.step(now)
        self.view.delivering(effects, now)
        return effects


def shown(harness: Harness) -> LiveView:
    """Puts a live view beside a harness's core."""
    core = ShownCore(harness.core, harness.now)
    harness.core = core  # type: ignore[assignment]
    return core.view


def watched(**options: Any) -> tuple[Harness, LiveView]:
    harness = Harness(**options)
    view = shown(harness)
    front = harness.connect()
    harness.send(front, Watch(LONGEST_LEASE))
    return harness, view


def slow_blocks(core: EngineCore) -> list[str] | None:
    """A word for each block, from the tables and the prefix index."""
    cache = core.state.scheduling.cache
    if cache is None:
        return None
    held: Counter[int] = Counter()
    for sequence in [
        *core.state.scheduling.running.values(),
        *core.state.scheduling.marked.values(),
    ]:
        held.update(sequence.table.blocks if sequence.table is not None else [])
    words = []
    for block in range(cache.pool.num_blocks):
        if held[block]:
            words.append("shared" if held[block] > 1 else "used")
        else:
            words.append("cached" if block in cache._key_of else "free")
    return words


def check_blocks(words: list[str], view: BlockView) -> None:
    counts = Counter(words)
    assert view.total == len(words)
    assert (view.free, view.cached, view.used, view.shared) == tuple(
        counts[word] for word in ("free", "cached", "used", "shared")
    )
    cells = -(-len(words) // view.span)
    assert cells <= MAX_CELLS
    assert len(view.map) == 3 * cells
    for place, word in enumerate(("used", "shared", "cached")):
        for cell in range(cells):
            here = words[cell * view.span : (cell + 1) * view.span].count(word)
            if view.span > 255:
                here = -(-255 * here // view.span)
            assert view.map[3 * cell + place] == here, (cell, word)


def check_snapshot(core: EngineCore, view: LiveView, now: float) -> Snapshot:
    core.check()
    snapshot = over_the_wire(view.snapshot(now), ToFrontend)
    scheduler = core.state.scheduling
    words = slow_blocks(core)
    assert (words is None) == (snapshot.blocks is None)
    if words is not None and snapshot.blocks is not None:
        check_blocks(words, snapshot.blocks)
    live = [
        sequence
        for request in core.state.frontends.requests()
        for sequence in request.sequences.values()
        if not sequence.finished
    ]
    by_state = Counter(sequence.state for sequence in live)
    queue, batch = snapshot.queue, snapshot.batch
    assert batch.running == by_state[SequenceState.RUNNING] == len(batch.rows)
    assert queue.sequences == by_state[SequenceState.WAITING] + by_state[SequenceState.PREEMPTED]
    assert queue.grammar == by_state[SequenceState.WAITING_FOR_GRAMMAR]
    assert queue.remote_kv == by_state[SequenceState.WAITING_FOR_REMOTE_KV]
    parked = [*core.state.grammars.parked(), *core.state.remote_kv.parked()]
    assert [(row.request, row.sequence) for row in queue.rows] == [
        (sequence.request.name, sequence.index)
        for sequence in [*scheduler.queue.sequences(), *parked][:MAX_QUEUE_ROWS]
    ]
    for row, sequence in zip(batch.rows, scheduler.running.values(), strict=True):
        tokens = len(sequence.request.prompt_token_ids) + len(sequence.emitted)
        assert (row.tokens, row.emitted, row.slot) == (tokens, len(sequence.emitted), sequence.slot)
        assert row.computed <= row.tokens
        assert row.blocks == len(sequence.table.blocks if sequence.table else ())
        # By its newest token alone it is behind, or by more.
        assert (row.phase == "decode") == (row.tokens - row.computed <= 1)
    opened = Counter(request.tenant for request in core.state.frontends.requests())
    assert {row.tenant: row.requests for row in snapshot.tenants.rows} == dict(opened)
    running = Counter(s.request.tenant for s in scheduler.running.values())
    assert all(row.running == running[row.tenant] for row in snapshot.tenants.rows)
    assert sum(row.requests for row in snapshot.frontends.rows) == sum(opened.values())
    assert snapshot.steps.total == scheduler.num_steps
    return snapshot


def walk(harness: Harness, choose: Any, length: int, *, looks: bool) -> Harness:
    """A random history; looks: with somebody who watches all the time."""
    view = shown(harness)
    walker = Walker(harness, choose)
    walker.connect()
    core = harness.core
    for _ in range(length):
        if looks:
            for front in harness.fronts:
                core.frontend_received(front.session, Watch(LONGEST_LEASE), harness.now)
            check_snapshot(core, view, harness.now)
            view.snapshots(harness.now)
        walker.walk()
    walker.end()
    return harness
