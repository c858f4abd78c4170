"""A worker that keeps to NUMA nodes. The nodes are a made-up sysfs of this machine's CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import StartupError
from penstock.process.numa import NODES, nodes
from penstock_worker.machine.numa import NUMAPlacement

pytestmark = pytest.mark.timeout(240)

ALLOWED = sorted(os.sched_getaffinity(0))
NONE_OF_OURS = "4000-4003"

CHILD = """
import json, os, sys, threading
from pathlib import Path
from penstock.process import logs
from penstock_worker.machine import numa
from penstock_worker.machine.cpu import usable_threads

logs.setup("child")
root, refuse = Path(sys.argv[1]), sys.argv[3] == "refuse"
wanted = tuple(map(int, sys.argv[2].split("+")))
if refuse:
    numa._SET_MEMPOLICY = dict.fromkeys(numa._SET_MEMPOLICY, 1 << 20)  # No such system call.
done = threading.Event()
before = threading.Thread(target=done.wait)
before.start()
placement = numa.NUMAPlacement(root)
placement.keep_to(wanted)
later = []
after = threading.Thread(target=lambda: later.append(sorted(os.sched_getaffinity(0))))
after.start()
after.join()
heap = next((line for line in open("/proc/self/numa_maps") if "[stack]" in line or "heap" in line),
            "") if os.path.exists("/proc/self/numa_maps") else ""
seen = {
    "main": sorted(os.sched_getaffinity(0)),
    "before": sorted(os.sched_getaffinity(before.native_id)),
    "after": later[0],
    "threads": usable_threads(),
    "policy": heap.split()[1] if heap else None,
}
placement.keep_to(())
seen["released"] = sorted(os.sched_getaffinity(before.native_id))
done.set()
print(json.dumps(seen))
"""


def sysfs(folder: Path, lists: dict[int, str]) -> Path:
    for node, cpus in lists.items():
        (folder / f"node{node}").mkdir()
        (folder / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    (folder / "online").write_text("0\n")
    return folder


def child(root: Path, wanted: str, memory: str = "bind") -> tuple[dict, str]:
    """What the child saw, and its log."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(root), wanted, memory],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), run.stderr


def test_a_node_that_does_not_exist(tmp_path: Path) -> None:
    root = sysfs(tmp_path, {0: f"{ALLOWED[0]}", 3: NONE_OF_OURS})
    with pytest.raises(StartupError) as error:
        NUMAPlacement(root).keep_to((1,))
    assert str(error.value) == (
        "NUMA node 1 is wanted, which doesn't exist; the nodes are: "
        "0 (1 of 1 CPUs usable), 3 (0 of 4 CPUs usable)"
    )
    with pytest.raises(StartupError, match="the nodes are: none shown by this system"):
        NUMAPlacement(tmp_path / "nothing").keep_to((0,))


@pytest.mark.parametrize("cpus", [NONE_OF_OURS, ""])
def test_a_node_without_a_usable_cpu(tmp_path: Path, cpus: str) -> None:
    root = sysfs(tmp_path, {0: f"{ALLOWED[0]}", 1: cpus})
    with pytest.raises(
        StartupError, match=r"NUMA node 1 is wanted, .* none of its CPUs; .*: 0 \(1 of 1"
    ):
        NUMAPlacement(root).keep_to((1,))
    assert sorted(os.sched_getaffinity(0)) == ALLOWED


def test_all_threads_are_pinned_to_what_may_be_used(tmp_path: Path) -> None:
    last = ALLOWED[-1]
    root = sysfs(tmp_path, {0: f"{last},{NONE_OF_OURS}"})
    seen, errors = child(root, "0")
    assert seen["main"] == seen["before"] == seen["after"] == [last]
    assert seen["threads"] == 1
    assert seen["released"] == ALLOWED
    assert seen["policy"] in (None, "prefer:0") or "refuses the memory policy" in errors


def test_memory_of_several_nodes_comes_from_each_in_turn(tmp_path: Path) -> None:
    """This machine may have node 0 only: the kernel leaves out those that it hasn't."""
    root = sysfs(tmp_path, {0: f"{ALLOWED[0]}", 1: f"{ALLOWED[-1]}", 2: ""})
    seen, errors = child(root, "0+1+2")
    assert seen["after"] == sorted({ALLOWED[0], ALLOWED[-1]})
    assert seen["threads"] == len(seen["after"])
    assert (seen["policy"] or "").startswith("interleave:0") or "refuses the memory" in errors


def test_a_kernel_that_refuses_memory_policies_is_a_warning(tmp_path: Path) -> None:
    seen, errors = child(sysfs(tmp_path, {0: f"{ALLOWED[0]}"}), "0", "refuse")
    assert seen["main"] == [ALLOWED[0]]
    # Once as the node is taken, once as it is left.
    assert errors.count("the kernel refuses the memory policy") == 2
    assert "Function not implemented" in errors


@pytest.mark.skipif(0 not in nodes(), reason=f"{NODES} shows no node 0")
def test_this_machines_own_node() -> None:
    usable = sorted(nodes()[0] & set(ALLOWED))
    if not usable:
        pytest.skip("node 0 has no CPU that this process may use")
    assert child(NODES, "0")[0]["after"] == usable
