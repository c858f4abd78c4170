"""Keeping a worker to NUMA nodes: their CPUs, and memory from their banks."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import StartupError
from penstock.process import logs
from penstock.process.numa import describe, nodes

log = logs.get(__name__)

_TASKS = Path("/proc/self/task")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""The system call's number; libc has no name for it."""
_MPOL_DEFAULT = 0
_MPOL_PREFERRED = 1
"""Other nodes' memory is better than none: with MPOL_BIND a full node would end the process."""
_MPOL_INTERLEAVE = 3
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


class NUMAPlacement:
    """Where this process runs. Made before anything else may have narrowed it.

    root: the folder of nodes in sysfs; None: the system's.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._allowed = os.sched_getaffinity(0)
        self._nodes: tuple[int, ...] = ()

    def keep_to(self, wanted: tuple[int, ...]) -> None:
        """Pins all threads to the nodes' CPUs. Memory comes from the node as long as it has any; of
        several, from each in turn.

        Empty: wherever the process was allowed to be.  Called by the thread that starts the compute
        threads, before it does: they inherit both.
        Raises StartupError for a node that isn't there, or nodes without a CPU that may be used.
        """
        if wanted == self._nodes:
            return
        cpus = self._cpus(wanted) if wanted else self._allowed
        for task in _TASKS.iterdir():
            try:
                os.sched_setaffinity(int(task.name), cpus)
            except ProcessLookupError:
                continue  # It has ended meanwhile.
        _take_memory_from(wanted)
        self._nodes = wanted
        if wanted:
            log.info("keeps to NUMA nodes", nodes="+".join(map(str, wanted)), processors=len(cpus))

    def _cpus(self, wanted: Sequence[int]) -> set[int]:
        """Returns which of the nodes' CPUs may be used."""
        known = nodes(self._root)
        for node in wanted:
            if node not in known:
                raise StartupError(
                    f"NUMA node {node} is wanted, which doesn't exist; the nodes are:"
                    f" {describe(self._root)}"
                )
        cpus = set[int]().union(*(known[node] for node in wanted)) & self._allowed
        if not cpus:
            raise StartupError(
                f"NUMA node {', '.join(map(str, wanted))} is wanted, and this process may use none"
                f" of its CPUs; the nodes are: {describe(self._root)}"
            )
        return cpus


def _take_memory_from(wanted: Sequence[int]) -> None:
    """Sets where memory of this thread, and of those that it starts, comes from; empty: the
    kernel's own policy. Where the kernel refuses, says so."""
    try:
        _set_mempolicy(wanted)
    except OSError as error:
        named = "+".join(map(str, wanted))
        log.warning("the kernel refuses the memory policy", nodes=named, reason=error.strerror)


def _set_mempolicy(wanted: Sequence[int]) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(0, f"set_mempolicy's number on {platform.machine()} isn't known")
    words = max(wanted, default=0) // _WORD + 1
    mask = (ctypes.c_ulong * words)()
    for node in wanted:
        mask[node // _WORD] |= 1 << node % _WORD
    modes = (_MPOL_DEFAULT, _MPOL_PREFERRED, _MPOL_INTERLEAVE)
    mode = modes[min(len(wanted), 2)]
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than maxnode.
    bits = ctypes.c_ulong(words * _WORD + 1)
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(mode), mask, bits) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
