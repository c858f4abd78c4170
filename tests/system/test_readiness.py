"""Readiness proves progress: it fails soon after a process freezes, and comes back by itself.

How soon follows from times that are set; a machine that has other work may be late to see it, so
the best of some tries is held against the promise.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import zmq

from penstock.client.session_state import STATUS_MAX_AGE
from penstock.config.settings import TransportSettings
from penstock.prepare import prepare
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_worker import Progress, Ready, WorkerHello
from penstock.protocol.to_worker import Plan, Setup, ToWorker
from testing.processes import freeze
from testing.serving import PATIENCE, Server, wait_until
from tests.engine.engine_process import Peer
from tests.engine.fake_worker import FakeWorker

pytestmark = [pytest.mark.timeout(600)]

NOTICED_WITHIN = 3.0
"""Seconds from the freeze to the first 503: the promise."""
TRIES = 6
STUCK = 3.0
"""Seconds without progress that StuckWorker's engine core lets pass."""


def ready(url: str) -> bool:
    return httpx.get(f"{url}/health/ready", timeout=PATIENCE).status_code == 200


def reason(url: str) -> str:
    return str(httpx.get(f"{url}/health/ready", timeout=PATIENCE).json()["reason"])


def test_the_promise_follows_from_the_times_that_are_set() -> None:
    transport = TransportSettings()
    # An engine core that freezes is old news after STATUS_MAX_AGE; the session of a worker that
    # does ends after its timeout, which the engine core tells at once.
    assert STATUS_MAX_AGE < NOTICED_WITHIN
    assert transport.peer_timeout < NOTICED_WITHIN
    assert max(STATUS_MAX_AGE, transport.peer_timeout) + transport.beat_interval <= NOTICED_WITHIN


def noticed_after(url: str, pid: int) -> float:
    """Freezes a process. Seconds until /health/ready has failed, after which it thaws."""
    wait_until(lambda: ready(url))
    freeze(pid)
    begun = time.monotonic()
    try:
        wait_until(lambda: not ready(url))
        return time.monotonic() - begun
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("victim", ["engine", "worker 0"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_frozen_process_is_noticed(
    start_server: Callable[..., Server], tiny_model: str, victim: str, busy: bool
) -> None:
    server = start_server(tiny_model, "--num-kv-blocks", "64")
    expected = server.complete(max_tokens=64, ignore_eos=True)
    over = threading.Event()

    def keep_busy() -> None:
        while not over.is_set():
            assert server.complete(max_tokens=64, ignore_eos=True) == expected

    load = threading.Thread(target=keep_busy)
    if busy:
        load.start()
    pid = server.child(victim)
    try:
        for moment in (0.0, 0.3):
            seconds: list[float] = []
            while min(seconds, default=NOTICED_WITHIN) >= NOTICED_WITHIN:
                assert len(seconds) < TRIES, seconds
                time.sleep(moment)
                seconds.append(noticed_after(server.url, pid))
                print(f"{victim} noticed after {seconds[-1]:.2f} s")
                wait_until(lambda: ready(server.url))
                assert httpx.get(f"{server.url}/health/live", timeout=PATIENCE).status_code == 200
    finally:
        over.set()
    if busy:
        load.join(4 * PATIENCE)
        assert not load.is_alive()
    assert server.child(victim) == pid, "it is the same process that serves again"
    assert server.complete(max_tokens=64, ignore_eos=True) == expected


class StuckWorker:
    """A real engine core and gateway over a worker of ours, which beats and steps as it is told.

    It holds every plan while `held`; `layers`, while it counts up, is progress inside a step.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        ends = [f"ipc://{folder}/frontends", f"ipc://{folder}/workers"]
        command = [sys.executable, "-m", "penstock"]
        flags = ["--progress-timeout", str(STUCK), "--shutdown-timeout", "0"]
        listening = ["--frontend-endpoint", ends[0], "--worker-endpoint", ends[1]]
        self.processes = [
            subprocess.Popen(
                [*command, "engine", "--model-dir", str(model), *flags, *listening],
            ),
            subprocess.Popen(
                [*command, "gateway", "--engine-endpoint", ends[0], "--port", "0"],
                stderr=subprocess.PIPE,
                text=True,
            ),
        ]
        self.url = self._address()
        self.held = False
        self.layers: int | None = None
        self.longest_silence = 0.0
        """Seconds between two signs of progress, at most: the machine may stop this process."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(ends[1],))
        self._thread.start()

    def _address(self) -> str:
        stderr = self.processes[1].stderr
        assert stderr is not None
        for line in stderr:
            if match := re.search(r"event=listening url=(\S+)", line):
                return match[1]
        raise AssertionError("the gateway left")

    def _work(self, endpoint: str) -> None:
        with zmq.Context() as context:
            peer = Peer(context, endpoint, ToWorker, WorkerHello(list(PROTOCOL_VERSIONS), 0, 1))
            worker: FakeWorker | None = None
            told = time.monotonic()
            while not self._over.is_set():
                peer.poll(time.monotonic())
                if (setup := peer.take(Setup)) is not None:
                    worker = FakeWorker(setup, 20)
                    peer.client.send(
                        Ready(num_kv_blocks=20, device="test", fingerprint="f", load_seconds=0.0)
                    )
                if self.layers is not None:
                    now = time.monotonic()
                    self.longest_silence = max(self.longest_silence, now - told)
                    self.layers += 1
                    peer.client.send(Progress(1, self.layers))
                told = time.monotonic()
                if not self.held and worker is not None and (plan := peer.take(Plan)) is not None:
                    peer.client.send(worker.execute(plan))
                time.sleep(0.05)
            peer.client.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.communicate(timeout=PATIENCE)


@pytest.fixture
def stuck(tmp_path: Path, tiny_model: str) -> Iterator[StuckWorker]:
    running = StuckWorker(tmp_path, Path(prepare(tiny_model)))
    yield running
    running.close()


def test_a_step_without_progress_counts_and_a_long_one_does_not(stuck: StuckWorker) -> None:
    wait_until(lambda: ready(stuck.url))
    stuck.held, stuck.layers = True, 0
    body = {"prompt": [3, 4, 5], "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    answers: list[int] = []

    def ask() -> None:
        answer = httpx.post(f"{stuck.url}/v1/completions", json=body, timeout=240)
        answers.append(answer.status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    long_step_ends = time.monotonic() + 2.2 * STUCK
    while time.monotonic() < long_step_ends:  # more than twice the timeout, layer by layer
        if not ready(stuck.url):
            assert stuck.longest_silence > STUCK / 2, "it made progress, and was not believed"
        time.sleep(0.1)
    wait_until(lambda: ready(stuck.url))
    stuck.layers = None  # it still beats
    expected = f"no step has made progress for {STUCK:g} s"
    wait_until(lambda: reason(stuck.url) == expected, message=lambda: reason(stuck.url))
    assert not ready(stuck.url)
    stuck.held = False
    wait_until(lambda: ready(stuck.url))
    asking.join(4 * PATIENCE)
    assert answers == [200]
