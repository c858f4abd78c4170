"""A rolling restart of the gateways: one after the other, so that one serves at any time."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Sequence

from penstock.process import logs
from penstock.supervisor.child import Child
from penstock.supervisor.readiness import gateway_ready

log = logs.get(__name__)

ROLL = signal.SIGUSR2
"""Asks the supervisor to restart the gateways one after the other; and a gateway to hand over."""

PATIENCE = 30.0
"""Seconds that a restarted gateway may take before the restart of the others is given up."""


class Rolling:
    """At most one restart at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(
        self, gateways: Sequence[Child], host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """Starts a restart of `gateways`, which share the socket at host and port."""
        if self._task is not None and not self._task.done():
            log.warning("the gateways are being restarted already")
            return
        self._task = asyncio.create_task(_roll(gateways, host, port, tls))

    async def cancel(self) -> None:
        """Gives up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def _roll(
    gateways: Sequence[Child], host: str, port: int, tls: ssl.SSLContext | None
) -> None:
    """Each once its predecessor serves. New connections meanwhile go to the others, or wait in the
    socket, which the supervisor holds."""
    for gateway in gateways:
        log.info("restarting", child=gateway.spec.name)
        await gateway.renew(ROLL)
        if gateway.pid is None:
            continue
        try:
            await asyncio.wait_for(gateway_ready(host, port, gateway.pid, tls), PATIENCE)
        except TimeoutError:
            log.error("not ready again", child=gateway.spec.name, seconds=PATIENCE)
            return  # The others, which serve, are left as they are.
    log.info("gateways restarted", count=len(gateways))
