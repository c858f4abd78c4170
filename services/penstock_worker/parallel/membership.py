"""A worker's membership in groups of ranks, one after another.

A group lives as long as the session whose Setup named it. When the session ends, the main thread
leaves the group as soon as it returns from what it is doing; a step that is being computed is given
up at its next communication with another rank.

A host that waits for a dead rank sees its connection close. A device doesn't: its stream stalls
inside a collective, and the main thread with it once that waits for the step to finish. In this
case a watchdog thread aborts the communicators, so that the device can run on to the step's end.
That doesn't help a rank which waits for one that is frozen; its process ends itself, and the
supervisor starts it again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import StartupError
from penstock.process import logs
from penstock.protocol.to_worker import RankGroup, Setup
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.rendezvous import Rendezvous

if TYPE_CHECKING:
    # Needs torch, which is imported when the first Setup comes.
    from penstock_worker.parallel.ranks import Ranks

log = logs.get(__name__)

STUCK_SECONDS = 5.0
"""Seconds that the main thread may wait for other ranks after its session has ended. After that,
the process ends itself."""

LOOK_SECONDS = 0.5
"""Seconds between the watchdog's checks."""


class Membership:
    """Joins and leaves groups, and watches the main thread after a session's end.

    `address` and `over` are called by the session's thread, everything else by the main thread.
    """

    def __init__(
        self,
        host: str,
        computing: Callable[[], bool] = lambda: False,
        end_process: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        """`computing` returns whether a step is being computed where waiting can't be observed, as
        in kernels on a device. Loading reports its waiting itself, by `Ranks.waiting`."""
        self._rendezvous = Rendezvous(host)
        self.computing = computing
        self._end_process = end_process
        self._ranks: Ranks | None = None
        self._member = False
        self._left = threading.Event()

    def address(self) -> str:
        """Returns HOST:PORT for the Hello message. Raises StartupError if the host is not an
        address of this machine."""
        return self._rendezvous.address()

    def join(self, setup: Setup, wanted: Callable[[], bool]) -> Ranks:
        """Forms the group that the setup names, if it names one.

        `wanted` returns whether the setup's session still lasts. Returns what the model
        communicates through; it is the same object for the same place, so that a model that is
        already loaded can continue to use it.

        Raises GroupLost if the group can't form, and StartupError for a model that can't be
        distributed.
        """
        from penstock_worker.parallel.ranks import Ranks

        place = RankPlace.of(setup.group)
        if self._ranks is None or self._ranks.place != place:
            self._ranks = Ranks(place)
        if setup.group is not None and place.ranks > 1:
            if setup.pooling is not None:
                raise StartupError("a pooling model is computed by one rank, not by several")
            self._form(self._ranks, setup, setup.group, wanted)
        return self._ranks

    def over(self) -> None:
        """Called when the session has ended: abandons the group, and starts the watchdog."""
        if not self._member:
            return
        ranks = self._ranks
        if ranks is not None:
            ranks.abandon()
        threading.Thread(
            target=self._watch, args=(self._left,), name="ranks-watchdog", daemon=True
        ).start()

    def leave(self) -> None:
        """Leaves the group. The loaded weights stay."""
        if self._ranks is not None:
            self._ranks.leave()
        self._member = False
        self._left.set()  # Last, because leaving may itself hang and must be watched.

    def close(self) -> None:
        self.leave()
        self._rendezvous.close()

    def _form(
        self, ranks: Ranks, setup: Setup, group: RankGroup, wanted: Callable[[], bool]
    ) -> None:
        from penstock_worker.parallel.errors import GroupLost
        from penstock_worker.parallel.group import Group, device_of

        begun = time.monotonic()
        self._left = threading.Event()
        ranks.busy, self._member = False, True
        try:
            ranks.join(Group(group, self._rendezvous, device_of(setup), wanted))
        except RuntimeError as error:
            raise GroupLost(f"the group of ranks can't form: {error}") from error
        if not wanted():
            ranks.abandon()  # The session ended before `over` could abandon this group.
        log.info(
            "group of ranks formed",
            rank=group.rank,
            layout=ranks.place.layout,
            number=group.number,
            seconds=time.monotonic() - begun,
        )

    def _watch(self, left: threading.Event) -> None:
        """Runs in the watchdog thread until the group is left. Aborts the communicators if the main
        thread waits for other ranks, and ends the process if it is still stuck after
        STUCK_SECONDS."""
        waited = 0.0
        while not left.wait(LOOK_SECONDS):
            ranks = self._ranks
            waiting = self.computing() or (ranks is not None and ranks.busy)
            if waiting and not waited and ranks is not None:
                ranks.cut()
            waited = waited + LOOK_SECONDS if waiting else 0.0
            if waited >= STUCK_SECONDS:
                log.error("another rank doesn't answer; this one can't continue", seconds=waited)
                self._end_process()
                return
