"""Two real gateways behind haproxy, one engine core, and a worker that says known words at an even
pace."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local import Balancer, answers, ask, free_port, haproxy
from penstock.prepare import prepare
from testing import processes
from testing.serving import PATIENCE, wait_until
from tests.deploy.programs import needed

STEP = 0.05

REPORTS = 3.0
"""Seconds: longer than an engine core leaves between two reports."""
PATH = "/v1/completions"


def body(seed: int, tokens: int, *, stream: bool = True) -> dict[str, Any]:
    return {
        "prompt": "Say it:",
        "max_tokens": tokens,
        "seed": seed,
        "ignore_eos": True,
        "stream": stream,
    }


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Short: a Unix socket's path must fit."""
    with tempfile.TemporaryDirectory(prefix="pst-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[str]:
    """The endpoint of an engine core that has a worker."""
    needed("haproxy")
    model = prepare(processes.MODEL)
    patient = ("--resume-grace-seconds", "120")  # A busy machine is slow to connect again.
    with processes.engine(folder, model, patient), processes.worker(folder, model, STEP):
        yield processes.front_end(folder)


@dataclass
class Pair:
    """Two gateways behind haproxy. One of them may be ended, and started again in its place."""

    engine: str  # endpoint
    balancer: Balancer
    addresses: list[str]
    running: list[tuple[contextlib.ExitStack, int]]

    def start(self, number: int) -> None:
        stack = contextlib.ExitStack()
        flags = ("--shutdown-timeout", "30")
        started = processes.gateway(self.engine, flags, address=self.addresses[number])
        self.running[number] = stack, stack.enter_context(started).pid

    def end(self, number: int, signum: int) -> None:
        """Returns when the process is gone."""
        stack, pid = self.running[number]
        os.kill(pid, signum)
        wait_until(lambda: not answers(f"http://{self.addresses[number]}/health/live"))
        stack.close()

    def states(self) -> list[str]:
        return list(self.balancer.servers().values())

    def busy(self) -> list[int]:
        """Gateways that haproxy waits for an answer of."""
        page = ask(f"http://{self.balancer.operations}/;csv").splitlines()
        rows = [line.split(",") for line in page if line.startswith("gateways,gateway")]
        return [number for number, row in enumerate(rows) if int(row[4])]


@pytest.fixture(scope="module")
def started(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with haproxy(addresses, tmp_path_factory.mktemp("haproxy")) as balancer:
        pair = Pair(engine, balancer, addresses, [(contextlib.ExitStack(), 0)] * 2)
        try:
            pair.start(0)
            pair.start(1)
            yield pair
        finally:
            for stack, _ in pair.running:
                stack.close()


@pytest.fixture
def pair(started: Pair) -> Pair:
    """Both are there; a test that ends one starts another in its place."""
    wait_until(lambda: started.states() == ["UP", "UP"], message=started.states)
    return started


def settled(count: Callable[[], int]) -> int:
    """A count of what the engine core reports now and then, once it stays: streams that an earlier
    test broke off may still be in it."""
    found, since = count(), time.monotonic()
    while time.monotonic() - since < REPORTS:
        time.sleep(REPORTS / 20)
        if (newer := count()) != found:
            found, since = newer, time.monotonic()
    return found


def generated(pair: Pair) -> int:
    """Tokens that the engine core has had computed, as it last said."""
    status = httpx.get(pair.balancer.url + "/status", timeout=PATIENCE).json()
    return int(status["engine"]["tokens_generated"])
