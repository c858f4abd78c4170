"""What runs on a node of the cluster: one worker's process, and how it ended.

The worker is a process of its own and not the actor's: it wants the main thread and the signals,
and its log goes where the actor's stderr goes, which Ray brings to the driver.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.supervisor.child import read_failure

WORD_LIMIT = 4096
"""Most characters of a reason that is carried to the driver."""


@dataclass(frozen=True)
class Task:
    """What a rank is given. Plain data, as Ray has to serialise it.

    config: the configuration as JSON, of which the worker reads transport and metrics.
    model_dir: the engine core's prepared folder; prepare: arguments of `penstock prepare` for a
    node where there is none.  environment: variables in addition to the node's.
    """

    rank: int
    endpoint: str
    config: bytes
    model_dir: str
    prepare: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class End:
    """How a worker's process ended. code: exit status, or minus the signal.  reason: its words."""

    code: int
    reason: str = ""


class RankActor:
    """An actor with threads: `stop` must be handled while `run` waits.

    The worker asks the kernel to end it when the thread that started it is gone, which is the one
    that waits for it: so it leaves with its actor, however that ends.
    """

    def __init__(self, address: str | None = None) -> None:
        """address: of this node, at which the other ranks reach it; None: Ray knows it."""
        self._address = _address_of_node() if address is None else address
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def address(self) -> str:
        """Address of the node that this actor is on."""
        return self._address

    def run(self, task: Task) -> End:
        """Returns when the worker has ended."""
        with tempfile.TemporaryDirectory(prefix="penstock-ray-") as name:
            folder = Path(name)
            (folder / "config.json").write_bytes(task.config)
            prepared = self._prepared(task, folder)
            if isinstance(prepared, End):
                return prepared
            arguments = ["worker", "--config", str(folder / "config.json")]
            arguments += ["--engine-endpoint", task.endpoint, "--rank", str(task.rank)]
            arguments += ["--rank-host", self._address, "--model-dir", prepared]
            return self._started(arguments, folder, task.environment)[0]

    def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds. Returns when the worker is gone."""
        self._stopping = True
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _prepared(self, task: Task, folder: Path) -> str | End:
        """The model's folder on this node, made where the engine core's path leads nowhere."""
        if (Path(task.model_dir) / "manifest.json").is_file():
            return task.model_dir
        end, output = self._started(task.prepare, folder, task.environment)
        return output.strip() if end.code == 0 else end

    def _started(
        self, arguments: Sequence[str], folder: Path, environment: tuple[tuple[str, str], ...]
    ) -> tuple[End, str]:
        """Runs the penstock command to its end: how that was, and what `prepare` printed."""
        failure = folder / "failure"
        failure.unlink(missing_ok=True)
        supervision = ("--supervised-by", str(os.getpid()), "--failure-file", str(failure))
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments, *supervision],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if arguments[0] == "prepare" else sys.stderr.fileno(),
            env={**os.environ, **dict(environment)},
            process_group=0,
        )
        self._process = process
        if self._stopping:
            process.kill()  # `stop` came before there was anything to stop
        output, _ = process.communicate()
        end = End(process.returncode, read_failure(failure)[:WORD_LIMIT])
        return end, (output or b"").decode()


def _address_of_node() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
