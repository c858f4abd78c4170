"""Keeping a worker to one NUMA node: its CPUs, and memory from its banks."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

from penstock.errors import StartupError
from penstock.process import logs

log = logs.get(__name__)

NODES = Path("/sys/devices/system/node")
_TASKS = Path("/proc/self/task")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""The system call's number; libc has no name for it."""
_MPOL_DEFAULT = 0
_MPOL_PREFERRED = 1
"""Other nodes' memory is better than none: with MPOL_BIND a full node would end the process."""
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


def parse_cpulist(text: str) -> set[int]:
    """CPU numbers of a list as the kernel writes it: `0-3,8,10-11`; may be empty."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def nodes(root: Path = NODES) -> dict[int, set[int]]:
    """Each node's CPUs, ascending by node. Empty where the system shows none.

    root: the folder of nodes in sysfs.
    """
    found = {}
    for folder in root.glob("node[0-9]*"):
        try:
            found[int(folder.name[4:])] = parse_cpulist((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue
    return dict(sorted(found.items()))


def describe(root: Path = NODES) -> str:
    """The nodes, for people, with how many of their CPUs this process may use."""
    allowed = os.sched_getaffinity(0)
    described = [
        f"{node} ({len(cpus & allowed)} of {len(cpus)} CPUs usable)"
        for node, cpus in nodes(root).items()
    ]
    return ", ".join(described) or "none shown by this system"


class NUMAPlacement:
    """Where this process runs. Made before anything else may have narrowed it.

    root: the folder of nodes in sysfs.
    """

    def __init__(self, root: Path = NODES) -> None:
        self._root = root
        self._allowed = os.sched_getaffinity(0)
        self._node: int | None = None

    def keep_to(self, node: int | None) -> None:
        """Pins all threads to the node's CPUs; memory comes from the node as long as it has any.

        None: wherever the process was allowed to be.  Called by the thread that starts the compute
        threads, before it does: they inherit both.
        Raises StartupError for a node that isn't there or has no CPU that may be used.
        """
        if node == self._node:
            return
        cpus = self._allowed if node is None else self._cpus(node)
        for task in _TASKS.iterdir():
            try:
                os.sched_setaffinity(int(task.name), cpus)
            except ProcessLookupError:
                continue  # It has ended meanwhile.
        _take_memory_from(node)
        self._node = node

    def _cpus(self, node: int) -> set[int]:
        """Returns which of the node's CPUs may be used."""
        known = nodes(self._root)
        if node not in known:
            raise StartupError(
                f"numa_node is {node}, which doesn't exist; the nodes are: {describe(self._root)}"
            )
        if not known[node] & self._allowed:
            raise StartupError(
                f"numa_node is {node}, none of whose CPUs this process may use; "
                f"the nodes are: {describe(self._root)}"
            )
        return known[node] & self._allowed


def _take_memory_from(node: int | None) -> None:
    """Prefers a node's memory for this thread and those that it starts; None: the kernel's own
    policy. Where the kernel refuses, says so."""
    try:
        _set_mempolicy(node)
    except OSError as error:
        log.warning("the kernel refuses the memory policy", node=node, reason=error.strerror)


def _set_mempolicy(node: int | None) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(0, f"set_mempolicy's number on {platform.machine()} isn't known")
    words = (node or 0) // _WORD + 1
    mask = (ctypes.c_ulong * words)()
    if node is not None:
        mask[node // _WORD] = 1 << node % _WORD
    mode = _MPOL_DEFAULT if node is None else _MPOL_PREFERRED
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel takes one bit less than it is told.
    bits = ctypes.c_ulong(words * _WORD + 1)
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(mode), mask, bits) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
