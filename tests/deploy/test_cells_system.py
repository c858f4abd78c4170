"""Two cells behind haproxy or Envoy, each with an engine core, a worker that says known words and a
gateway of its own; they know nothing of one another."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from deploy.local import Balancer, cells, free_port
from deploy.local_envoy import Envoy, envoy_cells
from penstock import resumed_events
from penstock.prepare import prepare
from testing import processes
from testing.serving import PATIENCE, wait_until
from testing.words import text
from tests.deploy.gateway_pair import PATH, STEP, body
from tests.deploy.programs import needed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 240


@dataclass
class Cell:
    address: str
    pids: list[int]
    stack: contextlib.ExitStack

    def tokens(self) -> int:
        """Tokens that its engine core has had computed, as it last said."""
        status = httpx.get(f"http://{self.address}/status", timeout=PATIENCE).json()
        return int(status["engine"]["tokens_generated"])

    def end(self, signum: int) -> None:
        """All of its processes at once."""
        for pid in self.pids:
            os.kill(pid, signum)


def started(folder: Path) -> Cell:
    model, stack = prepare(processes.MODEL), contextlib.ExitStack()
    address = f"127.0.0.1:{free_port()}"
    pids = [
        stack.enter_context(processes.engine(folder, model, [])).pid,
        stack.enter_context(processes.worker(folder, model, STEP)).pid,
        stack.enter_context(processes.gateway(processes.front_end(folder), address=address)).pid,
    ]
    return Cell(address, pids, stack)


@pytest.fixture(params=[("haproxy", cells), ("envoy", envoy_cells)], ids=["haproxy", "envoy"])
def two(request: pytest.FixtureRequest) -> Iterator[tuple[Balancer | Envoy, list[Cell]]]:
    program, in_front = request.param
    needed(program)
    with contextlib.ExitStack() as stack:
        there = []
        for _ in range(2):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pst-")))
            there.append(started(folder))
            stack.callback(there[-1].stack.close)
        log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pst-")))
        balancer = stack.enter_context(in_front([each.address for each in there], log))
        both = {"cell1": "UP", "cell2": "UP"}
        wait_until(lambda: balancer.servers() == both, message=balancer.servers)
        yield balancer, there


def heard(url: str, seed: int, begun: list[int]) -> str:
    """A stream's text as a client gets it that goes on where it breaks off. Each has an API key of
    its own, which says its cell. begun: gets the seed with the first piece."""
    said = ""
    asked = body(seed, TOKENS)
    for event in resumed_events(url, asked, path=PATH, api_key=f"k{seed}", patience=PATIENCE):
        if not said:
            begun.append(seed)
        said += "".join(choice["text"] for choice in event["choices"])
    return said


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "drained"])
def test_streams_of_a_cell_that_ends_go_on_in_the_other(
    two: tuple[Balancer | Envoy, list[Cell]], signum: int, request: pytest.FixtureRequest
) -> None:
    """Each answer is what it would have been, to the letter: an event's id holds what another cell
    needs, and both compute alike."""
    balancer, (lost, other) = two
    streams = 500 if request.config.getoption("--long") else 40
    begun = list[int]()
    with ThreadPoolExecutor(streams) as pool:
        reading = [pool.submit(heard, balancer.url, seed, begun) for seed in range(streams)]
        wait_until(lambda: len(begun) == streams)
        wait_until(lambda: lost.tokens() > 0 and other.tokens() > 0)
        lost.end(signum)
        wait_until(lambda: balancer.servers()["cell1"] == "DOWN", message=balancer.servers)
        found = [each.result(PATIENCE) for each in reading]
    assert found == [text(seed, TOKENS) for seed in range(streams)]
    assert balancer.servers() == {"cell1": "DOWN", "cell2": "UP"}
    print(f"{streams} streams, {other.tokens()} tokens in the cell that stayed")
