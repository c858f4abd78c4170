"""Processes of a system one by one: started, killed, started again, and stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.local import answers, free_port, wait

MODEL = "smollm2-135m"
PENSTOCK = (sys.executable, "-m", "penstock")
GRACE = 30.0


class RestartableProcess:
    """A process that can be killed and started again under the same command.

    It is started at once and, where it is used in a `with` block, stopped at its end.
    log: the file of what all of its lives say; None: nobody reads it.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command, self._log = command, log or Path(os.devnull)
        self._environment = {**os.environ, **(environment or {})}
        self.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def wait_answers(self, url: str) -> None:
        """Waits until a GET of the URL is a 200. Raises deploy.local.NotThere where it leaves
        first."""
        wait(lambda: answers(url), self.process, self._log, pause=0.005)

    def kill(self) -> None:
        """Kills the process at once; it is gone when this returns."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> RestartableProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.kill()


def freeze(pid: int) -> None:
    """Stops a process (SIGSTOP), and returns once it stands still. The signal alone doesn't wait:
    its other threads go on until the one that takes it has run, which takes a while on a busy
    machine. Raises TimeoutError."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + GRACE
    while not all(_stopped(thread) for thread in Path("/proc").glob(f"{pid}/task/*")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} goes on after SIGSTOP")
        time.sleep(0.002)


def _stopped(thread: Path) -> bool:
    """Whether it is stopped, or has ended."""
    try:
        stat = (thread / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("T", "t", "Z", "X")


def processor_seconds(pid: int) -> float:
    """Processor seconds that the process and its living descendants have computed."""
    process = psutil.Process(pid)
    family = (process, *process.children(recursive=True))
    return float(sum(sum(each.cpu_times()[:2]) for each in family))


def engine(folder: Path, model_dir: Path, flags: Sequence[str]) -> RestartableProcess:
    """An engine core whose sockets lie in `folder`, a short path."""
    command = [*PENSTOCK, "engine", "--model-dir", str(model_dir), *flags]
    command += ["--frontend-endpoint", front_end(folder), "--worker-endpoint", back(folder)]
    return RestartableProcess(command, folder / "engine.log")


def worker(folder: Path, model_dir: Path, step_seconds: float) -> RestartableProcess:
    """A null worker of that engine core."""
    command = [sys.executable, "-m", "testing.null_worker", back(folder)]
    command += ["--model-dir", str(model_dir), "--step-seconds", str(step_seconds)]
    return RestartableProcess(command, folder / "worker.log")


@dataclass(frozen=True)
class Gateway:
    """A gateway that is ready."""

    pid: int
    url: str
    port: int
    ready_s: float  # seconds from its start until it was


@contextlib.contextmanager
def gateway(
    endpoint: str,
    flags: Sequence[str] = (),
    *,
    address: str = "",
    log: Path | None = None,
    python: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Gateway]:
    """A gateway of the engine core at `endpoint`, from when it is ready.

    address: HOST:PORT; empty: a free port of loopback.  python: options of the interpreter.
    """
    host, port = (address or f"127.0.0.1:{free_port()}").rsplit(":", 1)
    command = [sys.executable, *python, "-m", "penstock", "gateway", "--engine-endpoint", endpoint]
    command += ["--host", host, "--port", port, *flags]
    begun = time.perf_counter()
    with RestartableProcess(command, log, environment) as process:
        url = f"http://{host}:{port}"
        process.wait_answers(f"{url}/health/ready")
        yield Gateway(process.pid, url, int(port), time.perf_counter() - begun)


def front_end(folder: Path) -> str:
    """Returns the endpoint where front ends reach the engine core."""
    return f"ipc://{folder}/front"


def back(folder: Path) -> str:
    """Returns the endpoint where workers reach it."""
    return f"ipc://{folder}/back"
