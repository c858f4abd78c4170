"""The processes started one by one, as containers have them: over TCP, with and without keys."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from deploy.local import free_port
from penstock.prepare import prepare
from penstock.transport.curve_keys import make_folders
from testing.processes import freeze
from testing.serving import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(400)

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_folders(tmp_path / "keys", ["gateway"], ["worker"])
    return tmp_path / "keys"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one process of the system; they are stopped in the order of their start."""
    running: list[subprocess.Popen[str]] = []

    def one(
        *arguments: str, program: tuple[str, ...] = ("-m", "penstock")
    ) -> subprocess.Popen[str]:
        log = (tmp_path / f"{len(running)}-{arguments[0]}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
        )
        log.close()
        running.append(process)
        return process

    yield one
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)


def ready(port: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            url = f"http://127.0.0.1:{port}/health/ready"
            if httpx.get(url, timeout=PATIENCE).status_code == 200:
                return True
        except httpx.TransportError:
            pass  # It isn't listening yet.
        time.sleep(0.1)
    return False


def test_with_keys_over_tcp(start: Start, keys: Path, tiny_model: str) -> None:
    front, back, http, other = free_ports(4)
    for_frontends, for_workers = f"tcp://127.0.0.1:{front}", f"tcp://127.0.0.1:{back}"
    engine = ("--model-dir", str(prepare(tiny_model)), "--curve-dir", str(keys / "engine"))
    endpoints = ("--frontend-endpoint", for_frontends, "--worker-endpoint", for_workers)
    start("engine", *engine, *endpoints)
    own = ("--curve-dir", str(keys / "worker"))
    start("worker", "--engine-endpoint", for_workers, *own)
    own = ("--curve-dir", str(keys / "gateway"))
    start("gateway", "--engine-endpoint", for_frontends, "--port", str(http), *own)
    assert ready(http, 2 * PATIENCE)
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"http://127.0.0.1:{http}/v1/completions", json=body, timeout=240)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
    # A gateway with a worker's key is not let in; the others don't notice.
    start("gateway", "--engine-endpoint", for_frontends, "--port", str(other),
          "--curve-dir", str(keys / "worker"))  # fmt: skip
    assert not ready(other, 4)
    assert ready(http, PATIENCE)


@pytest.mark.long
def test_a_worker_that_stands_still_with_nobody_to_end_it(start: Start, tiny_model: str) -> None:
    """Whoever puts the model to sleep hears of it after a minute; it falls asleep when it goes on,
    and wakes."""
    front, back, http = free_ports(3)
    for_frontends, for_workers = f"tcp://127.0.0.1:{front}", f"tcp://127.0.0.1:{back}"
    endpoints = ("--frontend-endpoint", for_frontends, "--worker-endpoint", for_workers)
    start("engine", "--model-dir", str(prepare(tiny_model)), *endpoints)
    worker = start("worker", "--engine-endpoint", for_workers)
    start("gateway", "--engine-endpoint", for_frontends, "--port", str(http))
    assert ready(http, 2 * PATIENCE)
    with httpx.Client(base_url=f"http://127.0.0.1:{http}", timeout=4 * PATIENCE) as client:

        def asleep() -> bool:
            engine = client.get("/status").json()["engine"]
            return engine is not None and engine["asleep"]

        freeze(worker.pid)
        try:
            refused = client.post("/sleep")
        finally:
            worker.send_signal(signal.SIGCONT)
        assert refused.status_code == 503
        assert "no worker of rank 0 for 60 s" in refused.json()["error"]["message"]
        wait_until(asleep)
        assert client.post("/wake_up").json() == {"status": "awake"}
        assert client.post("/v1/completions", json={"prompt": [1], "max_tokens": 2}).is_success


@pytest.mark.parametrize("role", ["engine", "worker", "gateway"])
def test_a_network_in_plain_is_one_clear_line(role: str, tiny_model: str) -> None:
    (port,) = free_ports(1)
    endpoint = f"tcp://*:{port}" if role == "engine" else f"tcp://192.0.2.1:{port}"
    arguments = {
        "engine": ("--model-dir", str(prepare(tiny_model)), "--worker-endpoint", "ipc:///tmp/none"),
        "worker": (),
        "gateway": ("--port", "0"),
    }[role]
    which = "--frontend-endpoint" if role == "engine" else "--engine-endpoint"
    done = subprocess.run(
        [sys.executable, "-m", "penstock", role, *arguments, which, endpoint],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode != 0
    assert f"{endpoint} is open to other machines" in done.stderr
    assert "--curve-dir" in done.stderr
    assert "Traceback" not in done.stderr
