"""An engine core, a null worker, gateways and haproxy, each a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local import Balancer, free_port, haproxy, wait
from penstock.prepare import prepare
from testing import processes
from testing.processes import MODEL


@dataclass
class System:
    folder: Path
    model_dir: Path
    pids: dict[str, int] = field(default_factory=dict)  # by name
    gateways: list[str] = field(default_factory=list)  # HOST:PORT of each
    balancer: Balancer | None = None

    @contextlib.contextmanager
    def gateway(self, address: str, *, flags: Sequence[str] = ()) -> Iterator[int]:
        """One more gateway at HOST:PORT, from when it is ready; yields its pid."""
        log = self.folder / f"gateway-{address.rpartition(':')[2]}.log"
        endpoint = processes.front_end(self.folder)
        with processes.gateway(endpoint, flags, address=address, log=log) as started:
            yield started.pid


@contextlib.contextmanager
def engine_and_worker(
    folder: Path, *, step_seconds: float, engine_flags: Sequence[str] = ()
) -> Iterator[System]:
    """folder: short, for its path goes into a Unix socket's address."""
    system = System(folder, prepare(MODEL))
    with (
        processes.engine(folder, system.model_dir, engine_flags) as core,
        processes.worker(folder, system.model_dir, step_seconds) as null,
    ):
        system.pids |= {"engine": core.pid, "null worker": null.pid}
        yield system


@contextlib.contextmanager
def balanced(
    folder: Path, gateways: int, *, step_seconds: float, engine_flags: Sequence[str] = ()
) -> Iterator[System]:
    """All of it, ready to serve. Raises NotThere where haproxy is not installed."""
    with contextlib.ExitStack() as stack:
        system = stack.enter_context(
            engine_and_worker(folder, step_seconds=step_seconds, engine_flags=engine_flags)
        )
        for number in range(1, gateways + 1):
            address = f"127.0.0.1:{free_port()}"
            system.pids[f"gateway {number}"] = stack.enter_context(system.gateway(address))
            system.gateways.append(address)
        system.balancer = stack.enter_context(haproxy(system.gateways, folder))
        system.pids["haproxy"] = system.balancer.process.pid
        wait(system.balancer.ready, system.balancer.process, system.balancer.log)
        yield system
