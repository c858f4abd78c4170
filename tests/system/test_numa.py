"""`--numa auto` on made-up NUMA nodes: where each rank runs, and that it answers as one rank does.

The nodes are a folder like sysfs's with a processor of this machine each. What two sockets gain
can't be seen so.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.serving import PATIENCE, Server, wait_until
from tests.system.test_ranks import PATIENT, SMALL, answers, streams

pytestmark = pytest.mark.timeout(900)

ALLOWED = sorted(os.sched_getaffinity(0))
MADE_UP = """
from pathlib import Path
from penstock.process import numa
numa.NODES, numa.STATUS = Path({nodes!r}), Path({status!r})
"""
"""Python runs it first in every process that finds it."""


@pytest.fixture
def on_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    if len(ALLOWED) < 2:
        pytest.skip("two nodes need a processor each")
    nodes, status = tmp_path / "nodes", tmp_path / "status"
    for node in range(2):
        (nodes / f"node{node}").mkdir(parents=True)
        (nodes / f"node{node}" / "cpulist").write_text(f"{ALLOWED[node]}\n")
    status.write_text("Mems_allowed_list:\t0-1\n")
    (tmp_path / "sitecustomize.py").write_text(MADE_UP.format(nodes=str(nodes), status=str(status)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = Server("smollm2-135m", *SMALL, *PATIENT, "--numa", "auto", wait=False)
    try:
        server.wait_ready(300)
        yield server
    finally:
        server.close()


def affinities(pid: int) -> set[tuple[int, ...]]:
    """Of all threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {tuple(sorted(os.sched_getaffinity(int(thread.name)))) for thread in threads}


def pages_by_policy(pid: int) -> dict[str, int]:
    """Of anonymous memory; empty where the kernel has no NUMA."""
    found: dict[str, int] = {}
    try:
        lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        pages = re.search(r" anon=(\d+)", line)
        if pages is not None:
            policy = line.split()[1]
            found[policy] = found.get(policy, 0) + int(pages[1])
    return found


def check_places(server: Server, node: int) -> None:
    pid = server.children()[f"penstock: worker {node}"]
    assert affinities(pid) == {(ALLOWED[node],)}
    pages = pages_by_policy(pid)
    refused = f'the kernel refuses the memory policy" nodes={node} ' in server.stderr
    if pages and not refused:  # A kernel refuses nodes that it hasn't.
        assert 2 * pages[f"prefer:{node}"] > sum(pages.values()), pages
    assert node > 0 or not refused


def test_each_rank_runs_on_its_node_and_answers_as_one_rank_does(on_two_nodes: Server) -> None:
    server = on_two_nodes
    with Server("smollm2-135m", *SMALL, *PATIENT, "--threads", "1") as one_rank:
        alone = answers(one_rank), asyncio.run(streams(one_rank.url))
    assert 'one rank for each NUMA node" ranks=0,1 threads=1' in server.stderr
    assert server.get("/status")[1]["engine"]["workers"] == 2
    for node in range(2):
        check_places(server, node)
    assert answers(server) == alone[0]
    victim = server.children()["penstock: worker 1"]
    disturbed = asyncio.run(streams(server.url, lambda: os.kill(victim, signal.SIGKILL)))
    assert disturbed == alone[1]
    wait_until(server.ready, 2 * PATIENCE, lambda: server.get("/status")[1])
    assert server.children()["penstock: worker 1"] != victim
    for node in range(2):
        check_places(server, node)
    assert answers(server) == alone[0]
