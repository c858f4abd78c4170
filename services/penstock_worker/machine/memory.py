"""How much memory is free, and how many KV blocks that makes."""

from __future__ import annotations

import ctypes
import mmap
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from penstock.errors import StartupError
from penstock.model.kv_layout import ONE_GROUP, KVGroup, blocks_needed
from penstock.process import logs
from penstock.process.memory import trim_heap
from penstock.protocol.to_worker import Setup
from penstock_worker.machine.cpu import cgroup_folders
from penstock_worker.machine.torch_import import torch_runs

log = logs.get(__name__)

MEMINFO = Path("/proc/meminfo")
STATM = Path("/proc/self/statm")
_UNLIMITED = 1 << 60
"""Version 1 writes a number beyond this for "no limit"."""

_CGROUP_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""controller, limit, usage, and the part of the usage that is page cache and can be dropped."""


def free_memory() -> int:
    """Bytes that this process could still take: what the system has, within each cgroup's limit and
    that of the process's own address space (`ulimit -v`).

    Page cache doesn't count as used.
    """
    free = [_system_available()]
    for controller, limit, usage, droppable in _CGROUP_FILES:
        for folder in cgroup_folders(controller):
            room = _room(folder, limit, usage, droppable)
            if room is not None:
                free.append(room)
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        free.append(most - _mapped())
    return max(0, min(free))


def _mapped() -> int:
    """Bytes of this process's address space, whether or not they are memory."""
    return int(STATM.read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def kv_blocks(
    *,
    block_bytes: int,
    fraction: float,
    free: int,
    wanted: int | None,
    useful: int,
    most: int = 0,
    longest: int = 1,
    least: int = 1,
) -> int:
    """Blocks for the pool.

    block_bytes: memory of one.  fraction: of `free` bytes that the pool may take.  wanted: what
    the user asked for, else None.  useful: how many could ever be in use at once.
    most: bytes that it takes at most, if that is enough for the `longest` sequence, in blocks; 0:
    any number.  least: with fewer, no sequence could be computed.
    Raises StartupError when there is no room for what was asked, or for the least.
    """
    if wanted is not None:
        if wanted * block_bytes > free:
            raise StartupError(
                f"num_kv_blocks is {wanted}, which takes {mib(wanted * block_bytes)}; "
                f"{mib(free)} are free"
            )
        refuse_too_few(wanted, least)
        return wanted
    affordable = int(free * fraction) // block_bytes
    if affordable < least:
        raise StartupError(
            f"not enough memory for the KV cache: {blocks_that_take(least)} "
            f"{mib(least * block_bytes)}, and {fraction:g} of the free {mib(free)} may be used "
            "(kv_memory_fraction)"
        )
    bound = max(most // block_bytes, longest) if most else useful
    return min(affordable, useful, bound)


def longest_blocks(setup: Setup, groups: Sequence[KVGroup] = ONE_GROUP) -> int:
    """Blocks that the longest sequence holds at most, in all KV groups together."""
    tokens = setup.max_model_len
    fresh = min(setup.max_num_batched_tokens, tokens)
    return blocks_needed(groups, tokens, setup.block_size, fresh)


def pool_blocks(
    setup: Setup,
    block_bytes: int,
    groups: Sequence[KVGroup] = ONE_GROUP,
    states: int = 0,
    media: int = 0,
    adapters: int = 0,
) -> int:
    """Blocks for the pool of a worker on a CPU. states: bytes of the states of recurrent layers,
    which the pool leaves free; media: the same of media and their encodings; adapters: of as many
    as may be loaded. Raises StartupError."""
    longest = longest_blocks(setup, groups)
    free = max(0, free_memory() - setup.host_kv_bytes)
    if states > free:
        raise StartupError(
            f"not enough memory for recurrent states: those of {setup.max_num_seqs} sequences"
            f" (max_num_seqs) take {mib(states)}; {mib(free)} are free"
        )
    if states + media > free:
        raise StartupError(
            f"not enough memory for media: {mib(media)} are needed for encodings and prepared items"
            f" (encoder_cache_rows, media_load_mib); {mib(free - states)} are free"
        )
    if states + media + adapters > free:
        raise StartupError(
            f"not enough memory for adapters: {setup.max_loras} of rank {setup.max_lora_rank}"
            " (max_loras, max_lora_rank, lora_whole_matrices, lora_experts) take"
            f" {mib(adapters)}; {mib(free - states - media)} are free"
        )
    left = free - states - media - adapters
    blocks = kv_blocks(
        block_bytes=block_bytes,
        fraction=setup.kv_memory_fraction,
        free=left,
        wanted=setup.num_kv_blocks,
        useful=setup.max_num_seqs * longest,
        most=setup.kv_memory_bytes,
        longest=longest,
        least=blocks_needed(groups, 1, setup.block_size),
    )
    _say_what_it_became(setup, blocks * block_bytes, left)
    return blocks


def _say_what_it_became(setup: Setup, taken: int, free: int) -> None:
    """Logs what the KV cache gets where more was asked for than there is."""
    if setup.num_kv_blocks or setup.kv_memory_bytes <= free:
        return
    log.warning(
        f"--kv-memory-gib asks for {gib(setup.kv_memory_bytes)}, and {gib(free)} of memory are"
        f" free: the KV pool has {gib(taken)} (--kv-memory-fraction {setup.kv_memory_fraction:g} of"
        " what is free, or what --max-num-seqs sequences need)"
    )


def refuse_too_few(wanted: int, least: int) -> None:
    """Raises StartupError for fewer blocks than a single token takes."""
    if wanted < least:
        raise StartupError(
            f"num_kv_blocks is {wanted}; this model needs at least {least}: a token's keys and "
            "values lie in a block of each KV group"
        )


def blocks_that_take(least: int) -> str:
    """The beginning of a sentence that says how much."""
    return "one block takes" if least == 1 else f"the {least} blocks that a token needs take"


def _system_available() -> int:
    for line in MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise StartupError(f"{MEMINFO} doesn't say how much memory is available")


def _room(folder: Path, limit_file: str, usage_file: str, droppable: str) -> int | None:
    """Bytes left in one cgroup, None where it has no limit."""
    try:
        limit = (folder / limit_file).read_text(encoding="ascii").strip()
        usage = int((folder / usage_file).read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    if limit == "max" or int(limit) >= _UNLIMITED:
        return None
    cache = sum(int(line.split()[1]) for line in stat if line.startswith(f"{droppable} "))
    return int(limit) - usage + cache


def gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"


def mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


# Memory that goes back to the operating system while its owner lives on, or once it is gone.

MADV_DONTNEED = 4
"""Linux's advice that takes private anonymous pages back at once: they are zero when next
touched."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def give_back_pages(memory: np.ndarray) -> int:
    """Whole pages of a contiguous array that lies in private anonymous memory: its contents are
    lost. Returns their bytes. Raises OSError, and ValueError for an array that has gaps."""
    if not memory.flags.c_contiguous:
        raise ValueError("what is to be given back has gaps, which belong to others")
    first = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (memory.ctypes.data + memory.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    size = end - first
    if size <= 0:
        return 0
    if _libc.madvise(first, size, MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), "KV memory can't be given back")
    return size


def give_back_freed() -> None:
    """Gives freed memory of this process back that is kept for later: by the C library, and by
    torch of a device's memory."""
    if torch_runs() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim_heap()
