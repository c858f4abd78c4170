"""This machine as far as models are concerned: memory, kernels, and how fast memory is read."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from penstock.process.machine import describe_machine
from penstock.process.others import Others
from penstock.recommend.fits import Machine
from penstock_kernels.cpu.library import instruction_set
from penstock_worker.machine.cpu import usable_threads
from penstock_worker.machine.memory import free_memory

BUFFER = 512 << 20
"""Bytes that are read for the bandwidth where memory allows: more than most caches hold."""
READ = np.bitwise_or.reduce
"""Reads an array as fast as memory gives it, without holding the interpreter up."""
SHARE = 8
"""At most one of so many parts of the free memory is taken for it."""
SECONDS = 0.5
"""For so long it is read again and again."""


def this_machine() -> Machine:
    """Takes about a second, for the bandwidth."""
    about, free, threads = describe_machine(), free_memory(), usable_threads()
    size = min(BUFFER, free // SHARE)
    others = Others()
    bandwidth = read_bandwidth(threads, size)
    small = ", of which caches may hold a part" if size < BUFFER else ""
    return Machine(
        memory=about["memory_bytes"],
        free=free,
        processor=about["cpu"],
        cores=threads,
        kernels=_kernels(),
        bandwidth=bandwidth,
        measured=f"numpy's bitwise or of {size >> 20} MiB on {threads} threads{small}, the fastest"
        f" of the passes within {SECONDS:g} s",
        others=others.share(),
    )


def read_bandwidth(threads: int, size: int) -> float:
    """Bytes per second that the threads read together. size: bytes in all. Each thread writes its
    part first, so that it lies in memory near it."""
    numbers = max(1, size // threads // 8)
    fastest, end = float("inf"), 0.0
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(lambda _: np.full(numbers, 7, np.int64), range(threads)))
        while True:
            began = time.perf_counter()
            end = end or began + SECONDS
            list(pool.map(READ, parts))
            now = time.perf_counter()
            fastest = min(fastest, now - began)
            if now >= end:
                return threads * numbers * 8 / fastest


def _kernels() -> str:
    try:
        return instruction_set()
    except ImportError:
        return "reference"
