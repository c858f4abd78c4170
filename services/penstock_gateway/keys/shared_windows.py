"""Windows that several gateways share in Redis, and what happens while it is slow or gone.

A circuit breaker stands before the storage.  The first answer that doesn't come within its patience
opens it: from then on no request waits, until a task that asks in the background has an answer
again.  Meanwhile requests are refused, or each gateway counts for itself, from what it saw
last.  What can't be counted in the storage is kept for as long as it would count there, and counted
once that is back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, Protocol

from penstock.process import logs
from penstock_gateway.keys.windows import MINUTE, LastWindows, LimitCheck, LimitState, StorageDown

log = logs.get(__name__)

Fallback = Literal["refuse", "local"]

SETTLE_EVERY = 0.02
"""Seconds in which what has ended is collected, to be counted together."""
PROBE_EVERY = 0.5
"""Seconds between attempts to reach a storage that didn't answer."""
LOG_EVERY = 60.0
"""Seconds between lines of the log that say that the storage is away."""
SETTLED_AT_ONCE = 512
"""Counts that are settled in one round trip."""
SLOT = 10
"""Seconds: what is to be counted is kept by when it came, to the slot."""
MOST_KEPT = 131_072
"""Amounts that are kept, one for each count and slot."""


class CountFailed(Exception):
    """A storage that works can't count this one. Its text says why."""


class Storage(Protocol):
    """Windows of several processes. Its methods raise any exception where it doesn't answer."""

    async def check(self, checks: Sequence[LimitCheck]) -> list[LimitState]:
        """Raises CountFailed where only some of the counts failed, and never will be counted."""

    async def add(self, amounts: dict[str, int]) -> dict[str, Exception]:
        """Returns the errors of those that weren't counted, by name: CountFailed, or what says
        that the storage doesn't answer."""

    async def close(self) -> None: ...


class Unsettled:
    """Amounts that the storage hasn't counted yet, for a minute: then they would no longer count
    there."""

    def __init__(self) -> None:
        self._slots: dict[int, Counter[str]] = {}
        self.lost = 0
        """Since the process began: what grew too old here, or was too much."""

    @property
    def total(self) -> int:
        """All amounts together."""
        return sum(slot.total() for slot in self._slots.values())

    def add(self, name: str, amount: int) -> None:
        """Keeps so much of a count that is used now."""
        number = int(time.monotonic() // SLOT)
        for old in [each for each in self._slots if each < number - MINUTE // SLOT]:
            self.lost += self._slots.pop(old).total()
        if sum(map(len, self._slots.values())) >= MOST_KEPT:
            self.lost += amount
            return
        self._slots.setdefault(number, Counter())[name] += amount

    def taken(self) -> tuple[int, dict[str, int]]:
        """Takes out some of the oldest that still count, and returns (their slot, amounts by
        name); none if there are none."""
        oldest = int(time.monotonic() // SLOT) - MINUTE // SLOT
        for number in sorted(self._slots):
            slot = self._slots.pop(number)
            if number < oldest:
                self.lost += slot.total()
                continue
            names = list(slot)
            for name in names[SETTLED_AT_ONCE:]:
                self._slots.setdefault(number, Counter())[name] = slot.pop(name)
            return number, dict(slot)
        return 0, {}

    def put_back(self, number: int, amounts: dict[str, int]) -> None:
        """What was taken, and couldn't be counted."""
        self._slots.setdefault(number, Counter()).update(amounts)


class SharedWindows:
    """RateWindows behind the circuit breaker. fallback: what is done while the storage doesn't
    answer."""

    def __init__(self, storage: Storage, fallback: Fallback) -> None:
        self._storage = storage
        self._fallback = LastWindows() if fallback == "local" else None
        self._unsettled = Unsettled()
        self._tasks: set[asyncio.Task[None]] = set()
        self._settling = False
        self._one_settles = asyncio.Lock()
        self._logged_at = float("-inf")
        self._note_failed_count = logs.Seldom(log.error)
        self.down = False
        """Whether the storage isn't asked, as it didn't answer."""

    @property
    def uncounted(self) -> int:
        """What is kept to be counted."""
        return self._unsettled.total

    @property
    def lost(self) -> int:
        """What was never counted, since the process began."""
        return self._unsettled.lost

    async def check(self, checks: Sequence[LimitCheck]) -> list[LimitState]:
        """Raises StorageDown where requests are to be refused."""
        if not self.down:
            try:
                states = await self._storage.check(checks)
            except CountFailed as error:
                self._tell_failed_count(error)
                if self._fallback is None:
                    raise StorageDown from error
                # The others of these counts were counted there.
                return [self._fallback.take(each) for each in checks]
            except Exception as error:
                self._failed(error)
            else:
                self._remember(checks, states)
                return states
        if self._fallback is None:
            raise StorageDown
        return [self._count_here(self._fallback, each) for each in checks]

    def add(self, name: str, amount: int) -> None:
        """Counts it in some milliseconds, or when the storage is back."""
        self._unsettled.add(name, amount)
        if self._fallback is not None:
            self._fallback.add(name, amount)
        if not self._settling and not self.down:
            self._settling = True
            self._start(self._settle())

    async def close(self) -> None:
        """Counts what has ended, unless the storage is away."""
        if not self.down:
            await self._settled()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.uncounted:
            log.warning("what keys have used was not counted", amount=self.uncounted)
        await self._storage.close()

    def _remember(self, checks: Sequence[LimitCheck], states: Sequence[LimitState]) -> None:
        if self._fallback is not None:
            for check, state in zip(checks, states, strict=True):
                self._fallback.saw(check.name, state.window)

    def _count_here(self, fallback: LastWindows, check: LimitCheck) -> LimitState:
        state = fallback.take(check)
        if state.allowed and check.amount:
            self._unsettled.add(check.name, check.amount)
        return state

    async def _settle(self) -> None:
        await asyncio.sleep(SETTLE_EVERY)
        self._settling = False
        await self._settled()

    async def _settled(self) -> None:
        """Counts all that is kept, unless the storage fails."""
        async with self._one_settles:
            while True:
                number, amounts = self._unsettled.taken()
                if not amounts:
                    return
                try:
                    errors = await self._storage.add(amounts)
                except BaseException as error:
                    self._unsettled.put_back(number, amounts)
                    if not isinstance(error, Exception):
                        raise
                    self._failed(error)
                    return
                if not self._is_settled(number, amounts, errors):
                    return

    def _is_settled(
        self, number: int, amounts: dict[str, int], errors: dict[str, Exception]
    ) -> bool:
        """Whether all of a slot's amounts were counted, or never will be; the others are kept."""
        outage: Exception | None = None
        again: dict[str, int] = {}
        for name, error in errors.items():
            if isinstance(error, CountFailed):
                self._unsettled.lost += amounts[name]
                self._tell_failed_count(error)
            else:
                again[name] = amounts[name]
                outage = error
        if outage is None:
            return True
        self._unsettled.put_back(number, again)
        self._failed(outage)
        return False

    def _tell_failed_count(self, error: CountFailed) -> None:
        self._note_failed_count("the storage of rate limits can't count a limit", reason=str(error))

    def _failed(self, error: Exception) -> None:
        if self.down:
            return
        self.down = True
        now = time.monotonic()
        logged = now - self._logged_at >= LOG_EVERY
        if logged:
            self._logged_at = now
            meanwhile = "keys with limits are refused"
            if self._fallback is not None:
                meanwhile = "this gateway counts for itself"
            log.error("the storage of rate limits failed", reason=repr(error), meanwhile=meanwhile)
        self._start(self._probe(logged=logged))

    async def _probe(self, *, logged: bool) -> None:
        """Asks until there is an answer, which counts something: a storage that may only be read is
        no help. It doesn't ask at once: a storage that fails for some counts only would be asked
        again and again. logged: whether the log has a line about it."""
        since = time.monotonic()
        await asyncio.sleep(PROBE_EVERY)
        while not await self._answers():
            await asyncio.sleep(PROBE_EVERY)
        self.down = False
        if logged:
            seconds = round(time.monotonic() - since, 1)
            log.info("the storage of rate limits is back", seconds=seconds)
        await self._settled()

    async def _answers(self) -> bool:
        try:
            error = (await self._storage.add({"probe": 1})).get("probe")
        except Exception as raised:
            error = raised
        if error is None or isinstance(error, CountFailed):
            return True
        log.debug("the storage of rate limits is still away", reason=repr(error))
        return False

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
