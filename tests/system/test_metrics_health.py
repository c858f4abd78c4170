"""The health checks of engine core and worker: frozen, alone, and without a port to be had."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.prepare import prepare
from testing.metrics_page import PORTS, Page, health, port_of, read_page
from testing.serving import PATIENCE, Server, ServerFailed, wait_until

pytestmark = [pytest.mark.timeout(600)]


def freeze(server: Server, victim: str) -> None:
    """Freezes a process until the other has noticed; both must be ready again after that."""
    frozen = port_of(server, victim)
    other = port_of(server, "engine" if victim == "worker 0" else "worker 0")
    wait_until(lambda: health(frozen)[0] == health(other)[0] == 200)
    assert health(frozen, "/health/live")[0] == 200
    pid = server.child(victim)
    os.kill(pid, signal.SIGSTOP)
    try:
        for path in ("/health/ready", "/health/live", "/metrics"):
            with pytest.raises(OSError):
                health(frozen, path, timeout=0.5)
        wait_until(lambda: health(other)[0] == 503)
        assert health(other)[1]["reason"], "it says why"
        assert health(other, "/health/live")[0] == 200
        if victim == "worker 0":
            wait_until(lambda: gone(read_page(other)))
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: health(frozen)[0] == health(other)[0] == 200)


def gone(page: Page) -> bool:
    """Whether the engine core has no worker, as it says."""
    return page.value("penstock:engine_ready") == page.value("penstock:workers") == 0


def test_health_of_what_is_frozen_and_of_what_depends_on_it(
    start_server: Callable[..., Server], tiny_model: str
) -> None:
    server = start_server(tiny_model, *PORTS)
    for victim in ("engine", "worker 0"):
        freeze(server, victim)


class Lone:
    """An engine core, or a worker, by itself."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments], stderr=subprocess.PIPE, text=True
        )

    def url(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if match := re.search(r'event="metrics port" url=(\S+)', line):
                return match[1]
        raise AssertionError("it left")

    def end(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            assert self.process.stderr is not None
            self.process.stderr.close()


def test_alone_they_live_and_are_not_ready(tiny_model: str, tmp_path: Path) -> None:
    ends = [f"ipc://{tmp_path}/f", f"ipc://{tmp_path}/w"]
    engine = Lone(
        *("engine", "--model-dir", str(prepare(tiny_model)), "--engine-metrics-port", "0"),
        *("--frontend-endpoint", ends[0], "--worker-endpoint", ends[1]),
    )
    try:
        url = engine.url()
        wait_until(lambda: health(url)[1]["reason"] == "no worker is connected")
        assert health(url)[0] == 503
        assert health(url, "/health/live") == (
            200,
            {"ok": True, "reason": "", "pid": engine.process.pid, "status": "ok"},
        )
        page = read_page(url)
        assert page.value("penstock:engine_ready") == page.value("penstock:workers") == 0
    finally:
        assert engine.end() == 0
    # Nobody is there to dial.
    worker = Lone("worker", "--engine-endpoint", ends[1], "--worker-metrics-port", "0")
    try:
        url = worker.url()
        assert health(url)[0] == 503
        assert health(url)[1]["reason"] == "no session with an engine core"
        assert health(url, "/health/live")[0] == 200
        assert read_page(url).value("penstock:worker_sessions_total") == 0
    finally:
        assert worker.end() == 0


@pytest.mark.parametrize("flag", ["--engine-metrics-port", "--worker-metrics-port"])
def test_a_taken_port_is_one_clear_line(
    start_server: Callable[..., Server], tiny_model: str, flag: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        server = start_server(tiny_model, flag, port, wait=False)
        with pytest.raises(ServerFailed) as caught:
            server.wait_ready()
    assert caught.value.code == 1
    assert "Traceback" not in caught.value.stderr
    line = caught.value.stderr.strip().splitlines()[-1]
    assert f"port {port} " in line
    assert f"choose another one with {flag}" in line
