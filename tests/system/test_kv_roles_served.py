"""Prompts computed by one engine core, and continued by another: answers have the same bytes as
those of one that does both, whoever is killed in between."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from testing.metrics_page import PORTS, port_of, read_page
from testing.serving import Server, wait_until
from testing.tiny_models import write_gguf

pytestmark = [pytest.mark.timeout(300)]

LONG = [[3 + (7 * n + n * at) % 200 for at in range(96 + n)] for n in range(1, 9)]
SHORT = [[3 + (5 * n + at) % 200 for at in range(20)] for n in range(1, 5)]
FLAGS = ("--num-kv-blocks", "256", "--max-num-batched-tokens", "32")
ROLES = ("--data-parallel-size", "2", "--kv-roles", "prefill,decode", "--kv-prefill-tokens", "64")


def asked(server: Server, prompt: list[int], **fields: Any) -> str:
    """One that comes while no engine core is ready waits two seconds, and is then to come again."""
    body = {"prompt": prompt, "model": server.model, "temperature": 0.8, "seed": 5, **fields}
    until = time.monotonic() + 60
    while True:
        status, answer = server.post(
            "/v1/completions", {"max_tokens": 12, "ignore_eos": True, **body}
        )
        if status != 503 or time.monotonic() > until:
            assert status == 200, answer
            return str(answer["choices"][0]["text"])


def all_asked(server: Server, salt: str, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    """salt: another one finds nothing of what was computed before."""
    prompts = LONG + SHORT
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = [pool.submit(asked, server, prompt, cache_salt=salt) for prompt in prompts]
        meanwhile()
        return [answer.result() for answer in answers]


def kill(server: Server, child: str) -> None:
    first = server.child(child)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: server.children().get(f"penstock: {child}") not in (None, first))


def read_by(url: str) -> float:
    """Blocks that an engine core has fetched, as it last told."""
    return read_page(url).value("penstock:disk_kv_blocks_total", result="read")


def ask_until_read(ask: Callable[[str], None], urls: list[str]) -> None:
    """Calls `ask` with one salt after another, until an engine core has fetched all blocks of a
    prompt: on a busy machine, computing some of them anew may look cheaper."""
    for turn in range(50):
        ask(f"turn {turn}")
        told = time.monotonic() + 2.0  # They tell about once a second.
        while time.monotonic() < told:
            if sum(map(read_by, urls)) >= 6:
                return
            time.sleep(0.05)
    raise AssertionError("in 50 turns, no prompt's blocks were fetched")


def engines(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get("/status")[1]["engines"]
    return found


def test_roles_change_no_byte(start_server: Callable[..., Server], tiny_model: str) -> None:
    alone = start_server(tiny_model, *FLAGS)
    undisturbed = all_asked(alone, "none")
    alone.close()
    server = start_server(tiny_model, *FLAGS, *ROLES, *PORTS)
    wait_until(lambda: sum(each["ready"] for each in engines(server)) == 2)

    def ask_all(salt: str) -> None:
        assert all_asked(server, salt) == undisturbed

    ask_until_read(ask_all, [port_of(server, "engine 1")])
    chance = random.Random(1)
    for child in ("worker 0", "engine 0", "worker 1", "engine 1"):

        def kill_once(child: str = child) -> None:
            time.sleep(chance.random() * 0.1)  # Anywhere.
            kill(server, child)

        assert all_asked(server, child, kill_once) == undisturbed, child
        wait_until(lambda: sum(each["ready"] for each in engines(server)) == 2)
    assert all_asked(server, "last") == undisturbed


def test_each_rank_fetches_its_part(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """From the rank with the same place, whoever of them is killed."""
    model = str(write_gguf(tmp_path / "tiny.gguf", heads=4, kv_heads=2))
    flags = (*FLAGS, "--max-model-len", "128", "--dtype", "float32", "--tensor-parallel-size", "2")
    alone = start_server(model, *flags)
    undisturbed = all_asked(alone, "none")
    alone.close()
    server = start_server(model, *flags, *ROLES, *PORTS)
    wait_until(lambda: sum(each["ready"] for each in engines(server)) == 2)

    def ask_all(salt: str) -> None:
        assert all_asked(server, salt) == undisturbed

    ask_until_read(ask_all, [port_of(server, "engine 1")])
    for child in [name for name in server.children() if "worker" in name]:
        name = child.removeprefix("penstock: ")
        assert all_asked(server, name, lambda name=name: kill(server, name)) == undisturbed, name
        wait_until(lambda: sum(each["ready"] for each in engines(server)) == 2)
    ask_until_read(lambda turn: ask_all(f"after {turn}"), [port_of(server, "engine 1")])


def test_a_prefix_follows_to_another_engine_core(
    start_server: Callable[..., Server], tiny_model: str
) -> None:
    both = ("--data-parallel-size", "2", "--kv-roles", "both,both", "--routing", "round-robin")
    server = start_server(tiny_model, *FLAGS, *both, *PORTS)
    wait_until(lambda: sum(each["ready"] for each in engines(server)) == 2)
    pages = [port_of(server, f"engine {number}") for number in (0, 1)]
    first = [asked(server, prompt) for prompt in LONG[:3]]
    # Another salt finds nothing, and moves the turns on by three.
    assert [asked(server, prompt, cache_salt="mine") for prompt in LONG[:3]] == first
    assert [asked(server, prompt) for prompt in LONG[:3]] == first
    assert sum(map(read_by, pages)) == 0, "each was where it had been"

    def ask_twice(salt: str) -> None:
        """Once of each engine core; nothing in between moves the turns."""
        for _ in range(2):
            assert asked(server, LONG[0], cache_salt=salt) == first[0]

    ask_until_read(ask_twice, pages)
