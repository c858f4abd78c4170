"""A worker's part in groups of ranks, one after the other.

A group lives as long as the session whose Setup named it.  When that ends, the main thread leaves
the group as soon as it comes back from what it does; a step is given up at the next word with
another rank.  A host that waits for a rank that is gone sees its connection close.  A device sees
nothing of the kind: its queue stands still in the middle of a collective, and the main thread with
it when it wants the step's end.  So the watchdog cuts the group, which lets the device go on to
that end.  Only a rank that waits for a frozen one can't come back: then the process ends, and is
started again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import logs
from penstock.errors import StartupError
from penstock.protocol.to_worker import RankGroup, Setup
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.rendezvous import Rendezvous

if TYPE_CHECKING:
    # Needs torch, which is imported when the first Setup comes.
    from penstock_worker.parallel.ranks import Ranks

log = logs.get(__name__)

STUCK_SECONDS = 5.0
"""That the main thread may wait for other ranks after its session's end."""

LOOK_SECONDS = 0.5


class Membership:
    """`address` and `over` are the session thread's, the rest the main thread's.

    computing: whether a step is being computed, where waiting can't be seen (kernels on a device);
    loading says so itself, by Ranks.waiting.
    """

    def __init__(
        self,
        host: str,
        computing: Callable[[], bool] = lambda: False,
        end_process: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        self._rendezvous = Rendezvous(host)
        self.computing = computing
        self._end_process = end_process
        self._ranks: Ranks | None = None
        self._member = False
        self._left = threading.Event()

    def address(self) -> str:
        """For a hello. Raises StartupError where the host isn't this machine's."""
        return self._rendezvous.address()

    def join(self, setup: Setup, wanted: Callable[[], bool]) -> Ranks:
        """Form the group that the setup names, if it names one. wanted: whether its session stands.

        Returns what the model talks to; the same object for the same place, so that a loaded model
        goes on with it.  Raises GroupLost, or StartupError for what can't be spread.
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
        """The session has ended."""
        if not self._member:
            return
        ranks = self._ranks
        if ranks is not None:
            ranks.abandon()
        threading.Thread(
            target=self._watch, args=(self._left,), name="ranks-watchdog", daemon=True
        ).start()

    def leave(self) -> None:
        """Hang up; the weights stay."""
        if self._ranks is not None:
            self._ranks.leave()
        self._member = False
        self._left.set()  # Not before: hanging up may itself hang.

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
            ranks.abandon()  # It ended before there was anything to abandon.
        log.info(
            "group of ranks formed",
            rank=group.rank,
            layout=ranks.place.layout,
            number=group.number,
            seconds=time.monotonic() - begun,
        )

    def _watch(self, left: threading.Event) -> None:
        """Frees the main thread where it waits for other ranks; ends the process if it doesn't come
        back all the same."""
        waited = 0.0
        while not left.wait(LOOK_SECONDS):
            ranks = self._ranks
            waiting = self.computing() or (ranks is not None and ranks.busy)
            if waiting and not waited and ranks is not None:
                ranks.cut()
            waited = waited + LOOK_SECONDS if waiting else 0.0
            if waited >= STUCK_SECONDS:
                log.error("another rank doesn't answer; this one can't go on", seconds=waited)
                self._end_process()
                return
