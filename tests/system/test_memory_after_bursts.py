"""A burst of long prompts leaves each process with what it had, and the worker with the KV pool,
which it has reserved openly: its size is in the log from the start."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from loadtest.memory import MIB, by_process
from testing.serving import Server, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STREAMS, TOKENS, BLOCKS = 16, 300, 256
"""More tokens than the pool's blocks hold, so that a burst touches all of them."""
MARGIN = 24 * MIB
"""Bytes of each process that may stay beside: buffers of the largest step, and what the C library
and Python keep because they soon need it again."""


def burst(server: Server, seed: int) -> None:
    """Prompts that have nothing in common, one of them with a grammar."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(1000, 40_000) for _ in range(TOKENS)] for _ in range(STREAMS)]
    bodies = [{"prompt": prompt, "max_tokens": 4, "ignore_eos": True} for prompt in prompts]
    bodies[0] |= {"max_tokens": 8, "ignore_eos": False, "structured_outputs": {"regex": "[ab]{8}"}}
    with ThreadPoolExecutor(STREAMS) as pool:
        for status, answer in pool.map(lambda body: server.post("/v1/completions", body), bodies):
            assert status == 200, answer


def held(root: psutil.Process) -> dict[str, int]:
    """By process. What the process for grammars shares with its forks counts for each with a part,
    so they are one."""
    found = by_process(root)
    return {**found, "grammars": found.get("grammars", 0) + found.pop("grammar", 0)}


def wait_for_at_most(root: psutil.Process, levels: dict[str, int]) -> None:
    def within() -> bool:
        now = held(root)
        return all(now.get(name, 0) <= size + MARGIN for name, size in levels.items())

    wait_until(within, message=lambda: (levels, held(root)))


def test_after_bursts_processes_have_what_they_had_and_the_kv_pool() -> None:
    with Server("--num-kv-blocks", str(BLOCKS)) as server:
        root = psutil.Process(server.process.pid)
        server.complete(structured_outputs={"regex": "[ab]{8}"}, max_tokens=8)  # Loads grammars.
        before = held(root)
        (pool,) = re.findall(r'kv_memory="([\d,.]+) MiB"', server.stderr)
        before["worker 0"] += round(float(pool.replace(",", "")) * MIB)
        burst(server, 1)
        wait_for_at_most(root, before)
        first = held(root)
        burst(server, 2)
        wait_for_at_most(root, first)
        # Preparers, if bodies took longer than the loop may, end when they have nothing to do.
        assert set(before) <= set(held(root)) <= set(before) | {"preparer", "preparers"}
