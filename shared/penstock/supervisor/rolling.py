"""A rolling restart of the gateways: one after the other, so that one serves at any time."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from penstock.process import logs
from penstock.supervisor.child import Child
from penstock.supervisor.waiting import gateway_ready

log = logs.get(__name__)

ROLL = signal.SIGUSR2
"""Asks the supervisor to restart the gateways one after the other; and a gateway to hand over."""

PATIENCE = 30.0
"""Seconds that a restarted gateway may take before the restart of the others is given up."""


class Renewable(Protocol):
    """What gateways are forks of."""

    async def renew(self) -> bool:
        """Returns once forks have what is installed now. False: that wasn't possible in time, and
        they have what they had."""
        ...


class Rolling:
    """Restarts processes, at most one at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(
        self,
        gateways: Sequence[Child],
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        source: Renewable | None = None,
    ) -> None:
        """Starts a restart of `gateways`, which share the socket at host and port. source: what
        they are forks of, which is renewed first, as it holds what was installed before."""
        if self._task is not None and not self._task.done():
            log.warning("the gateways are being restarted already")
            return
        self._task = asyncio.create_task(_roll(gateways, host, port, tls, source))

    async def cancel(self) -> None:
        """Gives up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def _roll(
    gateways: Sequence[Child],
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    source: Renewable | None,
) -> None:
    """Each once its predecessor serves. New connections meanwhile go to the others, or wait in the
    socket, which the supervisor holds."""
    if source is not None and not await source.renew():
        log.error("not ready again", child="fork-server", seconds=PATIENCE)
        return
    for gateway in gateways:
        log.info("restarting", child=gateway.spec.name)
        await gateway.renew(ROLL)
        if not await _ready_again(gateway, host, port, tls):
            log.error("not ready again", child=gateway.spec.name, seconds=PATIENCE)
            return  # The others, which serve, are left as they are.
    log.info("gateways restarted", count=len(gateways))


async def _ready_again(gateway: Child, host: str, port: int, tls: ssl.SSLContext | None) -> bool:
    """Whether its successor is ready in time, or that one's where it has died."""
    with suppress(TimeoutError):
        await asyncio.wait_for(gateway_ready(host, port, lambda: gateway.pid, tls), PATIENCE)
        return True
    return False
