"""How a gateway gets a model that the supervisor starts and stops, and keeps it while it has work.

A model is granted once, for any number of requests. When the supervisor asks for it back, the
gateway lets open requests finish and then releases it; requests that arrive meanwhile wait for the
next grant. So a model is never stopped under a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.errors import DeadlineExceeded, EngineUnavailable, ModelFailed, Overloaded
from penstock.metrics.histogram import Histogram
from penstock.protocol.from_supervisor import ModelState
from penstock.protocol.to_supervisor import (
    Busy,
    Idle,
    Leave,
    Seen,
    ToSupervisor,
    Unload,
    Unwant,
    Want,
)

MOST_WAITING = 4096
"""Requests of one gateway that wait for one model."""

WAITS = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds: bounds of how long requests waited."""


class Residence:
    """One model. pinned: it is always there, or about to be.  is_up: whether an engine core with it
    is ready to work.  tell: sends to the supervisor; False where it can't be reached."""

    def __init__(
        self,
        model: str,
        *,
        pinned: bool,
        is_up: Callable[[], bool],
        tell: Callable[[ToSupervisor], bool],
        patience: float,
    ) -> None:
        self.model = model
        self.pinned = pinned
        self.state: ModelState | None = None
        """The model's state, as the supervisor sent it last."""
        self.waits = Histogram(WAITS)
        """Seconds that requests waited for it."""
        self._is_up = is_up
        self._tell = tell
        self._patience = patience
        self._granted = False
        self._reclaimed = False
        self._wanted = False
        self._was_up = False
        self._open = 0
        self._waiting = 0
        self._changed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Requests that wait for it."""
        return self._waiting

    @property
    def held(self) -> bool:
        """Whether it was granted, and hasn't been left."""
        return self._granted

    @property
    def busy(self) -> bool:
        """Whether there is work for it."""
        return self._open > 0 or self._waiting > 0

    def why_absent(self) -> str | None:
        """Why there is no engine core with it, as far as the supervisor has said."""
        state = self.state
        if state is None or state.presence in ("ready", "closing"):
            return None
        if state.presence == "failed":
            return f"the model {self.model} could not be started: {state.reason}"
        words = {"absent": "is not loaded", "stopping": "is being unloaded"}
        return f"the model {self.model} {words.get(state.presence, 'is being loaded')}"

    @asynccontextmanager
    async def stay(self, deadline: float | None) -> AsyncIterator[float]:
        """Around work for the model. Gives the seconds that it was waited for.

        deadline: on the monotonic clock; None: as patience has it.

        Raises ModelFailed, Overloaded, DeadlineExceeded and EngineUnavailable.
        """
        if self.pinned:
            self._check_failed()
            yield 0.0
            return
        begun, waited = time.monotonic(), 0.0
        if not self._is_here():
            await self._wait(deadline)
            waited = time.monotonic() - begun
        self.waits.observe(waited)
        self._open += 1
        if self._open == 1:
            self._tell(Busy(self.model))
        try:
            yield waited
        finally:
            self._open -= 1
            if self._open == 0:
                self._rest()

    def unload(self) -> None:
        """Has it stopped once its requests have ended."""
        if not self.pinned:
            self._tell(Unload(self.model))

    def _is_here(self) -> bool:
        return self._granted and not self._reclaimed and self._is_up()

    def _rest(self) -> None:
        """Tells the supervisor that no request for the model is open any more."""
        if self._reclaimed:
            self._leave()
        elif self._granted:
            self._tell(Idle(self.model))
        elif self._wanted and not self._waiting:
            self._wanted = False
            self._tell(Unwant(self.model))

    def _leave(self) -> None:
        self._granted = self._reclaimed = False
        self._tell(Leave(self.model))
        if self._waiting:
            self._want()

    def _want(self) -> None:
        if not self._granted and not self._wanted:
            self._wanted = self._tell(Want(self.model))

    async def _wait(self, deadline: float | None) -> None:
        self._check_failed()
        if self._waiting >= MOST_WAITING:
            raise Overloaded(
                f"{MOST_WAITING} requests are already waiting for the model {self.model}",
                retry_after=5.0,
            )
        last = time.monotonic() + self._patience
        self._waiting += 1
        try:
            while not self._is_here():
                self._want()
                await self._next_change(last if deadline is None else min(deadline, last))
                self._check_failed()
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    raise DeadlineExceeded(
                        f"the request's deadline passed while {self.why_absent() or 'it waited'}"
                    )
                if now >= last:
                    raise EngineUnavailable(
                        f"the model {self.model} was not ready after {self._patience:g} s"
                    )
        except BaseException:
            self._waiting -= 1
            if not self._waiting and not self._open:
                self._rest()
            raise
        self._waiting -= 1

    async def _next_change(self, until: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _check_failed(self) -> None:
        state = self.state
        if state is not None and state.presence == "failed":
            left = state.retry_after - time.monotonic()
            if left > 0 or self.pinned:
                message = self.why_absent() or f"the model {self.model} could not be started"
                raise ModelFailed(message, retry_after=max(1.0, left))

    # What the link to the supervisor tells.

    def take_state(self, state: ModelState, now: float) -> None:
        """retry_after becomes a moment on this process's monotonic clock."""
        self.state = ModelState(
            model=state.model,
            presence=state.presence,
            reason=state.reason,
            retry_after=now + state.retry_after,
            memory_gib=state.memory_gib,
        )
        if state.presence == "failed":
            # Waiting requests get the error; the next one asks anew.
            self._wanted = self._granted = self._reclaimed = False
        if state.presence not in ("starting", "ready"):
            self._was_up = False
        self._wake()

    def granted(self) -> None:
        self._granted, self._wanted, self._reclaimed = True, False, False
        self._tell(Busy(self.model) if self._open or self._waiting else Idle(self.model))
        self._wake()

    def reclaimed(self) -> None:
        if not self._granted:
            return
        self._reclaimed = True
        if not self._open:
            self._leave()

    def connected(self) -> None:
        """There is a supervisor again, which knows what is held: the rest that is in use is
        asked for. What it said meanwhile it says once more."""
        self._wanted = self._was_up = False
        if self.busy:
            self._want()

    def look(self) -> None:
        """Whether an engine core has become ready is polled here."""
        up = self._is_up()
        if up and not self._was_up:
            self._tell(Seen(self.model))
        self._was_up = up
        if up:
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
