"""Where a request's time went: returned to a client that asks, logged when it was slow.

The parts of the wall time are disjoint and named, and what is left of it is named too: `rest`, the
time between the measured ones (messages between this gateway and the engine core, other requests'
turns in this process).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
from starlette.types import Scope

from penstock.client.timing import LAST_WORD
from penstock.errors import InvalidRequest
from penstock.process import logs
from penstock_gateway.http.scope_keys import REQUEST_ID
from penstock_gateway.tracing.trace import log_fields

if TYPE_CHECKING:
    from penstock.client.timing import RequestTiming
    from penstock.protocol.to_frontend import SequenceTimeline

log = logs.get(__name__)

HEADER = b"x-penstock-timeline"
SHARED = "x-penstock-shared"
"""Header of an answer that was computed along with an earlier request's: of how many prompts."""


class SequencePart(msgspec.Struct, kw_only=True):
    """One choice in the engine. Seconds and counts, as in the protocol's SequenceTimeline."""

    choice: int
    queue: float
    requeued: float
    compute: float
    dispatch: float
    idle: float
    share: float
    first_token: float | None
    steps: int
    preemptions: int
    swaps: int
    cached_tokens: int
    media: float = 0.0
    encoded_items: int = 0
    cached_items: int = 0
    media_bytes: int = 0
    drafted: int = 0
    kept: int = 0
    stored: float = 0.0
    stored_tokens: int = 0
    extra_steps: int = 0


class RequestTimeline(msgspec.Struct, kw_only=True):
    """wall: seconds from the request's arrival until its answer was put together.

    parts: they add up to wall.  prepare: body, checks, template, tokeniser.  model: until the
    model was loaded, where that had to be waited for.  earlier: in engine
    cores that died under it.  queue, requeued, compute, dispatch, idle: of the choice that ended
    last.  reply: from its end to the answer's.  rest: what is between these.
    detokenise, write: of all choices, while the engine went on with the next tokens.
    """

    wall: float
    parts: dict[str, float]
    detokenise: float
    write: float
    sequences: list[SequencePart]


class TimelineRecorder:
    """One HTTP request. wanted: whether its timeline may be needed.

    Raises InvalidRequest for a header that is neither 0 nor 1.
    """

    def __init__(self, scope: Scope, slow_after: float) -> None:
        self._begun = time.perf_counter()
        self._slow_after = slow_after
        self._asked = is_asked(scope)
        self._timeline: RequestTimeline | None = None
        self._waited = 0.0
        self._shared: tuple[tuple[str, str], ...] = ()
        self._scope = scope
        self.name: str = scope[REQUEST_ID]
        self.wanted = self._asked or slow_after > 0
        self.receipt = ""
        """The receipt that the client asks for, by x-penstock-receipt; empty for none."""

    def waited(self, seconds: float) -> None:
        """Notes for how long the request waited for its model to be loaded."""
        self._waited = seconds

    async def asked_for(
        self, timings: list[RequestTiming], n: int, write: float = 0.0
    ) -> RequestTimeline | None:
        """The timeline, if the client asked. n: choices of each prompt.  write: seconds."""
        if self._asked and timings:
            await _wait_for(timings)
            self._timeline = self._account(timings, n, write)
        return self._timeline

    def shared_by(self, prompts: int) -> tuple[tuple[str, str], ...]:
        """Notes, and returns as headers, for how many prompts the answer is computed along with an
        earlier request's."""
        self._shared = ((SHARED, str(prompts)),) if prompts else ()
        return self._shared

    def headers(self) -> tuple[tuple[str, str], ...]:
        """x-penstock-shared where it is; Server-Timing, in milliseconds, if the client asked."""
        if self._timeline is None:
            return self._shared
        parts = {**self._timeline.parts, "total": self._timeline.wall}
        value = ", ".join(f"{name};dur={1000 * seconds:.3f}" for name, seconds in parts.items())
        return (*self._shared, ("server-timing", value))

    @asynccontextmanager
    async def watching(self, timings: list[RequestTiming], n: int) -> AsyncIterator[None]:
        """Around the answer: logs one line if it was slow, however it ended."""
        try:
            yield
            if self._is_slow():
                await _wait_for(timings)
        finally:
            if self._is_slow():
                self._log(self._timeline or self._account(timings, n, 0.0))

    def _is_slow(self) -> bool:
        return 0 < self._slow_after <= time.perf_counter() - self._begun

    def _log(self, timeline: RequestTimeline) -> None:
        sequences = timeline.sequences
        log.warning(
            "slow request",
            request=self.name,
            **log_fields(self._scope),
            wall=timeline.wall,
            **timeline.parts,
            share=sum(each.share for each in sequences),
            steps=sum(each.steps for each in sequences),
            preemptions=sum(each.preemptions for each in sequences),
            swaps=sum(each.swaps for each in sequences),
            cached_tokens=sum(each.cached_tokens for each in sequences),
            stored_tokens=sum(each.stored_tokens for each in sequences),
            detokenise=timeline.detokenise,
        )

    def _account(self, timings: list[RequestTiming], n: int, write: float) -> RequestTimeline:
        wall = time.perf_counter() - self._begun
        parts: dict[str, float] = {}
        if timings:
            parts = self._parts(max(timings, key=lambda timing: timing.ended), wall)
        parts["rest"] = wall - sum(parts.values())
        return RequestTimeline(
            wall=_rounded(wall),
            parts={name: _rounded(seconds) for name, seconds in parts.items()},
            detokenise=_rounded(sum(timing.detokenise for timing in timings)),
            write=_rounded(write),
            sequences=[
                _sequence(number * n + index, timing.sequences[index])
                for number, timing in enumerate(timings)
                for index in sorted(timing.sequences)
            ],
        )

    def _parts(self, timing: RequestTiming, wall: float) -> dict[str, float]:
        parts = {"model": self._waited} if self._waited else {}
        parts |= {
            "prepare": timing.begun - self._begun - self._waited,
            "earlier": timing.submitted - timing.begun,
        }
        engine = timing.sequences.get(timing.last)
        if engine is not None:
            for name in ("queue", "requeued", "compute", "dispatch", "idle"):
                parts[name] = getattr(engine, name)
        if timing.ended:
            parts["reply"] = self._begun + wall - timing.ended
        return parts


async def _wait_for(timings: list[RequestTiming]) -> None:
    await asyncio.gather(*(timing.wait(LAST_WORD) for timing in timings))


def is_asked(scope: Scope) -> bool:
    """What x-penstock-timeline says. Raises InvalidRequest."""
    for name, value in scope["headers"]:
        if name == HEADER:
            if value not in (b"0", b"1"):
                raise InvalidRequest("the header x-penstock-timeline must be 0 or 1")
            return bool(value == b"1")
    return False


def _sequence(choice: int, engine: SequenceTimeline) -> SequencePart:
    fields = msgspec.structs.asdict(engine)
    for name, value in fields.items():
        if isinstance(value, float):
            fields[name] = _rounded(value)
    return SequencePart(choice=choice, **fields)


def _rounded(seconds: float) -> float:
    """Rounds seconds to microseconds."""
    return round(seconds, 6)
