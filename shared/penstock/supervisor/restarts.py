"""When to start a dead child again. No clock and no process in here: `now` is a parameter."""

from __future__ import annotations

import signal
from dataclasses import dataclass

FINAL_STARTUP_FAILURE = 78
"""Exit code of a child that can never start with its configuration (EX_CONFIG of sysexits.h)."""

OUT_OF_MEMORY = 71
"""Exit code of a child that the machine had no memory for (EX_OSERR of sysexits.h)."""


LESS_MEMORY = "; a smaller model, --max-model-len or --num-kv-blocks takes less memory"


@dataclass(frozen=True)
class RestartSettings:
    """Seconds, and a count.

    first_delay doubles with each death up to max_delay; once the system was ready it starts over
    after a life of stable_after.  max_startup_deaths: before the system was ever ready, however
    long each life was.
    """

    first_delay: float = 0.1
    max_delay: float = 5.0
    stable_after: float = 5.0
    max_startup_deaths: int = 5


@dataclass(frozen=True)
class Restart:
    """Start it again after `delay` seconds."""

    delay: float


@dataclass(frozen=True)
class GiveUp:
    """Starting it again would not help."""

    why: str


class RestartPolicy:
    """One child's deaths and what follows from them."""

    def __init__(self, settings: RestartSettings | None = None) -> None:
        self._settings = settings or RestartSettings()
        self._started_at = 0.0
        self._deaths_in_a_row = 0

    def started(self, now: float) -> None:
        """The child was started at `now` (seconds, monotonic)."""
        self._started_at = now

    def died(self, code: int, now: float, *, system_was_ready: bool) -> Restart | GiveUp:
        """The child ended by itself. code: exit status, or minus the signal that killed it.

        system_was_ready: whether the system has been ready at least once; until then a child that
        keeps dying, or finds no memory, is a start-up failure; afterwards it is started again for
        ever.
        """
        if code == FINAL_STARTUP_FAILURE:
            return GiveUp("it can't start")
        if code == OUT_OF_MEMORY and not system_was_ready:
            return GiveUp(f"the machine has not enough memory for it{LESS_MEMORY}")
        if system_was_ready and now - self._started_at >= self._settings.stable_after:
            self._deaths_in_a_row = 0
        self._deaths_in_a_row += 1
        if not system_was_ready and self._deaths_in_a_row >= self._settings.max_startup_deaths:
            how = f"it died {self._deaths_in_a_row} times, the last time {describe(code)}"
            return GiveUp(f"{how}{LESS_MEMORY if code == -signal.SIGKILL else ''}")
        # The exponent is bounded, so that a child that dies for days doesn't overflow a float.
        doublings = min(self._deaths_in_a_row - 1, 30)
        return Restart(min(self._settings.first_delay * 2**doublings, self._settings.max_delay))


HINTS = {
    "SIGKILL": " (was memory short?)",
    "SIGBUS": " (did a file of weights become shorter, or is a disk or /dev/shm full?)",
}
"""What else may have killed a process by a signal, where it wasn't asked for."""


def describe(code: int) -> str:
    """An exit status in words; a negative one is the signal that killed the process."""
    if code == OUT_OF_MEMORY:
        return "for lack of memory"
    if code >= 0:
        return f"with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}{HINTS.get(name, '')}"
