"""An engine core, a null worker, gateways and haproxy, each a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local import haproxy, wait
from penstock.prepare import prepare
from testing.processes import MODEL, engine, front_end, gateway, worker


@dataclass(frozen=True)
class System:
    pids: dict[str, int]  # by name
    url: str  # of haproxy


@contextlib.contextmanager
def balanced(
    folder: Path, gateways: int, *, step_seconds: float, engine_flags: Sequence[str] = ()
) -> Iterator[System]:
    """All of it, ready to serve. Raises NotThere where haproxy is not installed.

    folder: short, for its path goes into a Unix socket's address.
    """
    model = prepare(MODEL)
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        pids = {
            "engine": enter(engine(folder, model, engine_flags)).pid,
            "null worker": enter(worker(folder, model, step_seconds)).pid,
        }
        addresses = []
        for number in range(1, gateways + 1):
            log = folder / f"gateway-{number}.log"
            started = enter(gateway(front_end(folder), log=log))
            pids[f"gateway {number}"] = started.pid
            addresses.append(f"127.0.0.1:{started.port}")
        balancer = enter(haproxy(addresses, folder))
        pids["haproxy"] = balancer.process.pid
        wait(balancer.ready, balancer.process, balancer.log)
        yield System(pids, balancer.url)
