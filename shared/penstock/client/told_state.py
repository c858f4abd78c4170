"""The state that an engine core last reported, by which a front end goes."""

from __future__ import annotations

import time

from penstock.protocol.common import SleepLevel, WakeTag
from penstock.protocol.to_frontend import Status, Welcome

STATUS_MAX_AGE = 2.0
"""Seconds after which an engine core's last Status counts as out of date: four heartbeats."""

DEFAULT_BLOCK_SIZE = 16
"""Tokens of a KV block where the engine has not said yet."""


class ToldState:
    """The last Welcome and Status of an engine core, and what follows from them.

    welcome: the last that came, also of a session that has ended.  status, fingerprint, weights: of
    the present session.  refused: why no request is sent to an engine core that answers; empty if
    requests are sent.
    """

    def __init__(self) -> None:
        self.welcome: Welcome | None = None
        self.status: Status | None = None
        self.fingerprint: str | None = None
        self.weights: str | None = None
        self.refused = ""
        self._answered = False
        self._status_at = 0.0

    @property
    def connected(self) -> bool:
        """Whether requests can be sent: it has answered, and serves our model."""
        return self._answered and not self.refused

    @property
    def answered(self) -> bool:
        """Whether there is a session, also with an engine core of another model."""
        return self._answered

    @property
    def fresh(self) -> bool:
        """Whether its last Status is recent enough to count."""
        return self.status_age(time.monotonic()) <= STATUS_MAX_AGE

    @property
    def ready(self) -> bool:
        """Whether it takes and computes requests now."""
        status = self.status
        return (
            self.connected
            and status is not None
            and status.ready
            and not status.draining
            and self.fresh
        )

    @property
    def paused(self) -> bool:
        """Whether it computes nothing until it is told to go on."""
        return self.status is not None and self.status.paused

    @property
    def sleeping(self) -> SleepLevel:
        """The level at which its model sleeps, or is about to; 0: it doesn't."""
        return 0 if self.status is None else self.status.sleeping

    @property
    def waking(self) -> tuple[WakeTag, ...]:
        """Tags that WakeUp has named since the model fell asleep, which don't suffice to wake
        it."""
        return () if self.status is None else self.status.waking

    @property
    def asleep(self) -> bool:
        """Whether its workers have given back the memory that this level names."""
        return self.status is not None and self.status.asleep

    @property
    def missing_workers(self) -> tuple[int, ...]:
        """Ranks that have no worker."""
        return () if self.status is None else self.status.missing

    @property
    def prefills_from(self) -> int:
        """Least tokens of the prompts that this engine core computes for others to go on with; 0 if
        it computes none for others."""
        return 0 if self.welcome is None else self.welcome.prefills_from

    @property
    def expects(self) -> bool:
        """Whether it fetches a prompt's KV blocks while another one computes them."""
        return self.welcome is not None and self.welcome.expects

    @property
    def draining(self) -> bool:
        return self.status is not None and self.status.draining

    @property
    def hands_over(self) -> bool:
        """Whether it is about to leave, and its requests should go on elsewhere now."""
        return self.status is not None and self.status.hands_over

    @property
    def keeps_up(self) -> bool:
        """Whether it said last that no sequence waits there."""
        return self.status is not None and not self.status.waiting

    @property
    def block_size(self) -> int:
        return DEFAULT_BLOCK_SIZE if self.status is None else self.status.block_size

    def status_age(self, now: float) -> float:
        """Seconds since its last Status; infinity if there was none."""
        return now - self._status_at if self.status is not None else float("inf")
