"""An engine core, a null worker, gateways and haproxy, each a process of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local import Balancer, answers, free_port, haproxy, running, wait
from penstock.prepare import prepare

MODEL = "smollm2-135m"


@dataclass
class System:
    """pids: name -> pid.  gateways: HOST:PORT of each."""

    folder: Path
    model_dir: Path
    pids: dict[str, int] = field(default_factory=dict)
    gateways: list[str] = field(default_factory=list)
    balancer: Balancer | None = None

    @property
    def engine(self) -> str:
        """Where its gateways reach it."""
        return f"ipc://{self.folder}/front"

    @contextlib.contextmanager
    def gateway(self, address: str, *, flags: Sequence[str] = ()) -> Iterator[int]:
        """One more gateway at HOST:PORT, from when it is ready; yields its pid."""
        host, port = address.rsplit(":", 1)
        command = [*PENSTOCK, "gateway", "--engine-endpoint", self.engine]
        command += ["--host", host, "--port", port, *flags]
        log = self.folder / f"gateway-{port}.log"
        with running(command, log, {}) as process:
            wait(lambda: answers(f"http://{address}/health/ready"), process, log)
            yield process.pid


PENSTOCK = (sys.executable, "-m", "penstock")


@contextlib.contextmanager
def engine_and_worker(
    folder: Path, *, step_seconds: float, engine_flags: Sequence[str] = ()
) -> Iterator[System]:
    """folder: short, for its path goes into a Unix socket's address."""
    system = System(folder, prepare(MODEL))
    back = f"ipc://{folder}/back"
    engine = [*PENSTOCK, "engine", "--model-dir", str(system.model_dir), *engine_flags]
    engine += ["--frontend-endpoint", system.engine, "--worker-endpoint", back]
    worker = [sys.executable, "-m", "testing.null_worker", back]
    worker += ["--model-dir", str(system.model_dir), "--step-seconds", str(step_seconds)]
    with (
        running(engine, folder / "engine.log", {}) as core,
        running(worker, folder / "worker.log", {}) as null,
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
