"""An EngineCore between fake front ends and a fake worker. `Harness` joins the two sides: each call
lets the core step, brings its messages to whom they are for, as they come over the wire, and checks
all books. Answers are compared with those of the naive model in `scores.py`.
"""

from __future__ import annotations

from typing import Any

from penstock.protocol.to_frontend import ToFrontend
from penstock.protocol.to_worker import ToWorker
from penstock_engine.facts import EngineFacts
from tests.engine.frontend_side import FrontendSide
from tests.engine.wire import encode, over_the_wire
from tests.engine.worker_side import WorkerSide


class Harness(FrontendSide, WorkerSide):
    """Drives a core; every call checks all books and everything that the core sent."""

    def __init__(self, engine_facts: EngineFacts | None = None, **options: Any) -> None:
        super().__init__(engine_facts, **options)
        self.media_at_once = True
        """Whether front ends and the worker answer at once what they are asked about media."""
        self.allow_internal_errors = False
        self.trace: list[bytes] = []
        """What the core sent, step by step."""

    def settle(self) -> None:
        """Lets the core step, takes what it sends, and checks all books."""
        effects = self.core.step(self.now)
        self.core.check()
        running = self._in_slots()
        self._check_accounts()
        told = [(session, message) for session, message, _ in effects.to_workers]
        self.trace.append(encode([told, effects.to_frontends]))
        for session, message, chunks in effects.to_workers:
            self.frames = tuple(chunk.data for chunk in chunks)
            self._to_worker(session, over_the_wire(message, ToWorker))
        due = list(self.worker.asked) if self.worker is not None and self.compile_at_once else []
        for session, message, frames in effects.to_frontends:
            front = self._front_of(session)
            self._front_gets(front, over_the_wire(message, ToFrontend), frames)
        self._check_in_step(running, internal_errors=self.allow_internal_errors)
        for _, reason in effects.end_workers + effects.end_frontends:
            assert self.allow_internal_errors or "internal error" not in reason
        for session, reason in effects.end_workers:
            self._worker_ends(session, reason)
            self.core.worker_ended(session, reason, self.now)
        for session, reason in effects.end_frontends:
            front = self._front_of(session)
            front.ended = reason
            self._drop(front)
            self.core.frontend_ended(session, reason, self.now)
        for number in due:
            self.compiles(number)
        if self.media_at_once:
            self.answer_media()
        if self.adapters_at_once:
            self.load_adapter()
        if self.disk_at_once:
            self.answer_disk()

    def answer_media(self) -> bool:
        """Front ends send what they were asked for, and the worker says what it has. Whether there
        was anything."""
        was = False
        while True:
            if self.asked_media:
                self.send_media(*self.asked_media.popleft())
            elif not self.worker_answers():
                return was
            was = True

    def run(self, most: int = 2000) -> None:
        """Until nothing is left to do."""
        for _ in range(most):
            others = (self.answer_media, self.load_adapter, self.answer_disk)
            if self.run_step() is None and not any(answer() for answer in others):
                assert not self.core.state.scheduling.has_work
                assert not self.core.state.adapters.num_waiting
                assert not self.core.state.media.num_waiting
                assert not self.core.state.disk_kv.num_fetches
                return
        raise AssertionError(f"not done after {most} steps")
