"""What memory a burst of long prompts leaves with each process: the KV pool, and nothing else."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from loadtest.memory import MIB, by_process
from testing.serving import Server, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STREAMS, TOKENS, BLOCKS = 24, 400, 256
"""More tokens than the pool's blocks hold, so that a burst touches all of them."""
SLACK = 24 * MIB
"""Bytes that may differ from one burst to the next: the C library and Python keep what they soon
need again."""


def burst(server: Server, seed: int) -> None:
    """Prompts that have nothing in common, one of them with a grammar."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(1000, 40_000) for _ in range(TOKENS)] for _ in range(STREAMS)]
    bodies = [{"prompt": prompt, "max_tokens": 4, "ignore_eos": True} for prompt in prompts]
    bodies[0] = {"prompt": prompts[0], "max_tokens": 8, "structured_outputs": {"regex": "[ab]{8}"}}
    with ThreadPoolExecutor(STREAMS) as pool:
        for status, answer in pool.map(lambda body: server.post("/v1/completions", body), bodies):
            assert status == 200, answer


def test_after_bursts_processes_have_what_they_had_and_the_kv_pool() -> None:
    with Server("--num-kv-blocks", str(BLOCKS)) as server:
        root = psutil.Process(server.process.pid)

        def held() -> dict[str, int]:
            return {name: size for name, size in by_process(root).items() if name != "grammar"}

        def have_at_most(levels: dict[str, int]) -> bool:
            now = held()
            return all(now.get(name, 0) <= size + SLACK for name, size in levels.items())

        server.complete(structured_outputs={"regex": "[ab]{8}"}, max_tokens=8)  # Loads grammars.
        wait_until(lambda: held().get("grammars", 0) > 20 * MIB)
        before = held()
        (pool,) = re.findall(r'kv_memory="([\d,.]+) MiB"', server.stderr)
        before["worker 0"] += round(float(pool.replace(",", "")) * MIB)
        burst(server, 1)
        wait_until(lambda: have_at_most(before), message=lambda: (before, held()))
        first = held()
        for seed in (2, 3):
            burst(server, seed)
            wait_until(lambda: have_at_most(first), message=lambda: (first, held()))
