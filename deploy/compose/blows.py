"""What is done to the running system: a container's process killed, services restarted in turn."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from deploy.compose import docker
from deploy.compose.load import RetryingFleet
from deploy.compose.system import Container, System

RECOVERY_SECONDS = 180.0
"""After which streams that stand still are lost."""
STOP_SECONDS = 45
"""That a container gets between SIGTERM and SIGKILL: more than --shutdown-timeout."""
SETTLED = 1.0
"""Seconds of load before and after a restart."""

_KILL = "import os, sys; os.kill(int(sys.argv[1]), 9)"


@dataclass(frozen=True)
class Blow:
    """What a kill did.

    first, all: seconds until the first stream, and every one, gained something again, or had ended.
    open_there: requests that went through a killed gateway or load balancer, else None.  cuts:
    streams that broke and were begun anew.  refused: that got a 503 before they began.
    """

    victim: str
    first: float
    all: float
    cuts: int
    refused: int
    open_there: int | None


@dataclass(frozen=True)
class Restart:
    """A service's containers restarted one after the other under load. seconds: for all.  answers:
    that ended meanwhile.  cuts: streams that were begun anew."""

    service: str
    containers: int
    seconds: float
    answers: int
    cuts: int
    reasons: tuple[str, ...]


def kill(container: Container, image: str) -> None:
    """SIGKILL to a container's first process, as a crash: `docker kill` would count as the user's
    wish, and the engine would leave the container down.

    image: any that holds Python; it runs beside the container, in the machine's own process
    namespace, so that this works where the engine's machine is a virtual one.  Raises Failed.
    """
    apart = ["--network", "none", "--user", "0", "--cap-drop", "ALL", "--cap-add", "KILL"]
    run = ["run", "--rm", "--pid", "host", *apart, "--entrypoint", "python", image]
    docker.docker(*run, "-c", _KILL, str(container.pid), timeout=60)


async def strike(system: System, fleet: RetryingFleet, container: Container, image: str) -> Blow:
    """Kills it under the fleet, and waits until every stream has moved on. Raises TimeoutError."""
    there = None
    if container.service == "gateway":
        there = system.gateway_state(container)["gateway"]["open_requests"]
    elif container.service == "haproxy":
        there = len(fleet.position())
    await asyncio.to_thread(kill, container, image)
    struck = time.monotonic()
    position = fleet.position()
    first = await fleet.wait_moved(position, 1, RECOVERY_SECONDS)
    everyone = await fleet.wait_moved(position, len(position), RECOVERY_SECONDS)
    # Until the dead one is back, and all have moved once more: two deaths in a row with nothing
    # gained between them would fail a request on purpose (the rule against poison).
    await asyncio.to_thread(system.wait_ready, container.service, "gateway")
    position = fleet.position()
    await fleet.wait_moved(position, len(position), RECOVERY_SECONDS)
    # The kill itself takes a moment to be carried out, and streams break in that moment.
    cuts = fleet.cuts_since(struck - 5.0)
    # A stream counts once, however often it was tried while there was nobody. One that was refused
    # before it began was not cut: while no gateway is ready, that is the answer.
    refused = {cut.request for cut in cuts if cut.reason.startswith("503 ")}
    broken = {cut.request for cut in cuts if not cut.reason.startswith("503 ")}
    return Blow(container.service, first, first + everyone, len(broken), len(refused), there)


async def restart_each(system: System, fleet: RetryingFleet, *services: str) -> Restart:
    """SIGTERM, wait, start again, wait until it is ready; one container after the other."""
    await asyncio.sleep(SETTLED)
    begun, equal = time.monotonic(), fleet.score.equal
    containers = [each for service in services for each in system.containers(service)]
    for container in containers:
        restart = ["restart", "--time", str(STOP_SECONDS), container.id]
        await asyncio.to_thread(docker.docker, *restart)
        await asyncio.to_thread(system.wait_ready, container.service, "gateway")
        position = fleet.position()
        await fleet.wait_moved(position, len(position), RECOVERY_SECONDS)
    seconds = time.monotonic() - begun
    cuts = fleet.cuts_since(begun)
    reasons = tuple(sorted({cut.reason[:200] for cut in cuts}))
    answers = fleet.score.equal - equal
    return Restart(services[0], len(containers), seconds, answers, len(cuts), reasons)
