"""`--executor ray`: a real system whose ranks are actors of a local cluster of two nodes.

With --ray only: Ray is an extra of its own, and a cluster takes a while to come up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from penstock.net.runtime_dir import remove_abandoned
from testing.serving import Server, ServerFailed, wait_until

pytestmark = [pytest.mark.timeout(300)]

SMALL = ("--max-model-len", "512", "--num-kv-blocks", "128", "--dtype", "float32")
PROMPTS = ("The capital of France is", "1, 2, 3, 4,", "Once upon a time, in a small village,")
ASKED = ({"max_tokens": 12}, {"max_tokens": 12, "temperature": 0.9, "seed": 7})


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Two nodes of one CPU each, so two ranks can't be on one."""
    if not request.config.getoption("--ray"):
        pytest.skip("takes two minutes, and needs the extra `ray`: --ray")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    running = Cluster(True, head_node_args={**node, "include_dashboard": False})
    try:
        running.add_node(**node)
        running.wait_for_nodes()
        os.environ["RAY_ADDRESS"] = running.address
        yield running
    finally:
        os.environ.pop("RAY_ADDRESS", None)
        ray.shutdown()
        running.shutdown()


def workers() -> dict[str, psutil.Process]:
    """Title -> process of the workers that Ray's nodes have started."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or ()).strip()
        if title.startswith("penstock: worker") and ray_above(process):
            found[title] = process
    return found


def ray_above(process: psutil.Process) -> bool:
    try:
        return any("raylet" in parent.name() for parent in process.parents())
    except psutil.NoSuchProcess:
        return False


def answers(server: Server) -> list[str]:
    """To all prompts, asked together."""
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(server.complete, prompt, **fields) for prompt in PROMPTS for fields in ASKED
        ]
        return [one.result() for one in asked]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """What a worker beside its engine core says."""
    server = Server(*SMALL, "--attention-backend", "reference")
    try:
        return answers(server)
    finally:
        server.close()


def test_two_ranks_on_two_nodes_say_what_one_worker_says(
    cluster: Any, expected: list[str], start_server: Any
) -> None:
    server = start_server(*SMALL, "--executor", "ray", "--tensor-parallel-size", "2")
    assert answers(server) == expected
    found = workers()
    assert sorted(found) == ["penstock: worker 0", "penstock: worker 1"]
    nodes = {next(p.pid for p in one.parents() if p.name() == "raylet") for one in found.values()}
    assert len(nodes) == 2
    server.close()
    wait_until(lambda: not workers(), message=workers)


def test_a_rank_that_dies_is_started_again(
    cluster: Any, start_server: Any, tiny_model: str
) -> None:
    """The rank dies by itself, and with its actor."""
    server = start_server("--model", tiny_model, "--executor", "ray")
    undisturbed = answers(server)
    for victim in (lambda worker: worker, lambda worker: worker.parent()):
        worker = workers()["penstock: worker 0"]
        os.kill(victim(worker).pid, signal.SIGKILL)
        wait_until(lambda pid=worker.pid: not psutil.pid_exists(pid))
        assert answers(server) == undisturbed
    assert not [title for title in server.children() if title.startswith("penstock: worker")]


def test_a_killed_supervisor_leaves_no_worker_on_the_cluster(
    cluster: Any, start_server: Any, tiny_model: str
) -> None:
    server = start_server("--model", tiny_model, "--executor", "ray")
    assert workers()
    server.stop(signal.SIGKILL)
    wait_until(lambda: not workers(), 20, workers)
    # Nobody was left to remove the runtime folder; the next start does.
    remove_abandoned(server.runtime_base)


def test_a_cluster_without_room_is_one_clear_line(
    cluster: Any, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each rank reserves as many CPUs as it has threads.
    with pytest.raises(ServerFailed) as caught:
        Server("--model", tiny_model, "--executor", "ray", "--threads", "64")
    assert "the Ray cluster had no room within" in caught.value.stderr
    assert "64 CPU each; it has 2 CPU" in caught.value.stderr
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ServerFailed) as caught:
        Server("--model", tiny_model, "--executor", "ray")
    assert "no Ray cluster answers at 127.0.0.1:1" in caught.value.stderr
