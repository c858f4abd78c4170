"""Keeps one rank going on the cluster: the twin of `supervisor.child.Child`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError

import ray
from penstock.process import logs
from penstock.supervisor.restarts import GiveUp, RestartPolicy, describe
from penstock_ray.actor import End, RankActor, Task
from penstock_ray.placement import Reserved

log = logs.get(__name__)

GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL, as of a local worker."""

PATIENCE = 60.0
"""Seconds in which a node must have started an actor."""

LOST = -9
"""What the loss of an actor, or of its node, counts as."""


class Rank:
    """One rank's actors, one after the other. check: raises Unavailable for a node's address that
    can't be used."""

    def __init__(
        self,
        task: Task,
        reserved: Reserved,
        check: Callable[[str, int], None],
        system_was_ready: Callable[[], bool],
        policy: RestartPolicy | None = None,
    ) -> None:
        self._task = task
        self._options = reserved.options(task.rank)
        self._check = check
        self._system_was_ready = system_was_ready
        self._policy = policy or RestartPolicy()
        self._actor: Any = None
        self._stopping = asyncio.Event()

    async def run(self) -> str | None:
        """Returns why the rank can't go on, or None when it was stopped. Raises Unavailable for a
        node that can't be used."""
        while not self._stopping.is_set():
            end = await self._live()
            if self._stopping.is_set():
                return None
            decision = self._policy.died(
                end.code, time.monotonic(), system_was_ready=self._system_was_ready()
            )
            if isinstance(decision, GiveUp):
                return f"rank {self._task.rank}: {end.reason or decision.why}"
            log.warning(
                "rank died",
                rank=self._task.rank,
                how=end.reason or describe(end.code),
                restart_in=decision.delay,
            )
            await self._wait_for_stop(decision.delay)
        return None

    async def stop(self) -> None:
        """Returns when worker and actor are gone, or were given their time."""
        self._stopping.set()
        actor = self._actor
        if actor is None:
            return
        try:
            await asyncio.wait_for(actor.stop.remote(GRACE), GRACE + 2.0)
        except (RayError, TimeoutError):
            pass  # Its worker leaves with it.
        self._end_actor()

    async def _live(self) -> End:
        """One actor, from its making to its end."""
        self._policy.started(time.monotonic())
        self._actor = ray.remote(RankActor).options(**self._options).remote()
        try:
            address = await asyncio.wait_for(self._actor.address.remote(), PATIENCE)
            self._check(address, self._task.rank)
            log.info("rank started", rank=self._task.rank, node=address)
            self._policy.started(time.monotonic())
            end: End = await self._actor.run.remote(self._task)
            return end
        except RayError as error:
            return End(LOST, f"its actor is gone: {_first_line(error)}")
        except TimeoutError:
            return End(LOST, f"no node has started its actor within {PATIENCE:g} s")
        finally:
            if not self._stopping.is_set():
                self._end_actor()

    def _end_actor(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            ray.kill(actor)

    async def _wait_for_stop(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            pass


def _first_line(error: RayError) -> str:
    return str(error).strip().partition("\n")[0][:300]
