"""A model whose layers see windows, served by engine cores for prompts and for answers with a disk:
whoever is killed while blocks travel, or are written, streams have the same bytes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from penstock_worker.stores.disk import MAGIC
from testing.metrics_page import PORTS, port_of, read_page
from testing.serving import PATIENCE, Server, wait_until
from testing.tiny_models import write_hub_folder
from tests.worker.models.family_cases import CASES
from tests.worker.models.test_parity_families import make_theirs

pytestmark = [pytest.mark.timeout(600)]

PROMPTS = [[3 + (7 * n + n * at) % 200 for at in range(200 + n)] for n in range(1, 9)]
BLOCKS = 12
"""Full ones of a prompt, in a group that sees all of it."""
SIZES = {"vocab_size": 700, "eos_token_id": 2, "num_hidden_layers": 8, "intermediate_size": 2000}
"""So large, and steps so small, that fetching is the quicker way."""
FLAGS = ("--max-model-len", "256", "--num-kv-blocks", "600", "--max-num-batched-tokens", "16")
ROLES = ("--data-parallel-size", "2", "--kv-roles", "prefill,decode", "--kv-prefill-tokens", "64")
PROCESSES = ("worker 0", "engine 0", "worker 1", "engine 1")
FROZEN = 4.0
"""Seconds."""
TURNS = 20
"""In one of so many at the latest, blocks are on their way when it is looked."""


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Gemma 2, random weights: every other layer sees 21 tokens."""
    folder = tmp_path_factory.mktemp("windows") / "windowed"
    family, settings = CASES["gemma2"]
    write_hub_folder(folder, config={})
    make_theirs(family, settings | SIZES).save_pretrained(folder)
    return str(folder)


def stream(server: Server, prompt: list[int], salt: str, begun: Callable[[], None]) -> bytes:
    """Its text. One that comes while no engine core is ready is to come again. begun: called with
    the first of it."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": 24,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": 5,
        "cache_salt": salt,
        "stream": True,
    }
    until, url = time.monotonic() + PATIENCE, f"{server.url}/v1/completions"
    while True:
        with httpx.stream("POST", url, json=body, timeout=4 * PATIENCE) as reply:
            if reply.status_code == 200:
                return text_of(reply.iter_lines(), begun)
            told = reply.read()
        assert reply.status_code == 503, told
        if time.monotonic() >= until:
            raise TimeoutError(repr(told))


def text_of(lines: Iterator[str], begun: Callable[[], None]) -> bytes:
    text, last = b"", ""
    for line in filter(None, lines):
        last = line
        if line.startswith("data: {"):
            chunk = json.loads(line.removeprefix("data: "))
            text += chunk["choices"][0]["text"].encode()
            begun()
    assert last == "data: [DONE]"
    return text


def streams(
    server: Server, salt: str, meanwhile: Callable[[set[int]], None] = lambda begun: None
) -> list[bytes]:
    """All at once. meanwhile: what is done then; it is given the numbers of those that have begun,
    which become more."""
    begun: set[int] = set()
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        asked = [
            pool.submit(stream, server, prompt, salt, lambda n=n: begun.add(n))
            for n, prompt in enumerate(PROMPTS)
        ]
        meanwhile(begun)
        return [each.result() for each in asked]


def ready(server: Server) -> bool:
    status, told = server.get("/status")
    return status == 200 and sum(each["ready"] for each in told["engines"]) == 2


def kill(server: Server, child: str) -> None:
    """Until it is back."""
    first = server.child(child)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: server.children().get(f"penstock: {child}") not in (None, first))
    wait_until(lambda: ready(server))


def freeze(server: Server, child: str) -> None:
    """For longer than a session lasts without a beat."""
    pid = server.child(child)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(FROZEN)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: ready(server))


def stop_for_good(server: Server, child: str) -> None:
    """Until the supervisor has ended it, and another one is there."""
    first = server.child(child)
    os.kill(first, signal.SIGSTOP)
    wait_until(lambda: server.children().get(f"penstock: {child}") not in (None, first), 120)
    wait_until(lambda: ready(server))


def fetched(server: Server) -> float:
    """Blocks that the worker for answers has fetched from the other one, in this life of its."""
    page = read_page(port_of(server, "worker 1"))
    return page.value("penstock:worker_peer_kv_blocks_total", result="fetched")


def read(server: Server) -> float:
    """Blocks that the only engine core has had read."""
    page = read_page(port_of(server, "engine"))
    return page.value("penstock:disk_kv_blocks_total", result="read")


def blocks_in(folder: Path) -> int:
    return sum(path.read_bytes().count(MAGIC) for path in folder.glob("*/*.kv"))


@pytest.fixture(scope="module")
def undisturbed(windowed: str) -> list[bytes]:
    with Server(windowed, *FLAGS) as alone:
        return streams(alone, "none")


def divided(model: str, folder: Path, write_mib: float) -> Server:
    disk = ("--disk-kv-dir", str(folder), "--disk-kv-gib", "0.05", "--kv-fetch-ahead")
    pace = ("--disk-kv-write-mib", str(write_mib))
    return Server(model, *FLAGS, *ROLES, *PORTS, *disk, *pace)


@pytest.mark.parametrize(
    "strike",
    [
        kill,
        pytest.param(freeze, marks=pytest.mark.long),
        pytest.param(stop_for_good, marks=pytest.mark.long),
    ],
)
def test_whoever_is_killed_while_blocks_travel(
    windowed: str,
    tmp_path: Path,
    undisturbed: list[bytes],
    strike: Callable[[Server, str], None],
) -> None:
    with divided(windowed, tmp_path, write_mib=256) as server:
        wait_until(lambda: ready(server))
        for child in PROCESSES:
            for turn in range(TURNS):
                before, struck = fetched(server), False

                def strike_in_between(
                    begun: set[int], child: str = child, before: float = before
                ) -> None:
                    nonlocal struck
                    while len(begun) < len(PROMPTS) and not struck:
                        if fetched(server) > before:
                            struck = True
                            strike(server, child)

                assert streams(server, f"{child}, {turn}", strike_in_between) == undisturbed, child
                if struck:
                    break
            assert struck, f"in {TURNS} turns, no block was fetched before all streams had begun"
        assert streams(server, "after all of it") == undisturbed


def test_whoever_is_killed_while_blocks_are_written(
    windowed: str, tmp_path: Path, undisturbed: list[bytes]
) -> None:
    """They are written slowly. What was written until then is found by a later life."""
    with divided(windowed, tmp_path, write_mib=0.5) as server:
        wait_until(lambda: ready(server))
        for child in PROCESSES:
            before = blocks_in(tmp_path)

            def kill_in_between(begun: set[int], child: str = child, before: int = before) -> None:
                wait_until(lambda: blocks_in(tmp_path) > before)
                assert blocks_in(tmp_path) < before + BLOCKS * len(PROMPTS)
                kill(server, child)

            assert streams(server, child, kill_in_between) == undisturbed, child
        assert streams(server, "after all of it") == undisturbed
    with Server(windowed, *FLAGS, "--disk-kv-dir", str(tmp_path), *PORTS) as server:
        for salt in PROCESSES:
            assert streams(server, salt) == undisturbed
        wait_until(lambda: read(server) > 0)


def test_blocks_are_fetched_before_their_request_comes(
    windowed: str, undisturbed: list[bytes]
) -> None:
    with Server(windowed, *FLAGS, *ROLES, *PORTS, "--kv-fetch-ahead") as server:
        wait_until(lambda: ready(server))
        page = port_of(server, "engine 1")
        for turn in range(TURNS):
            assert streams(server, f"turn {turn}") == undisturbed
            told = read_page(page).value("penstock:prefetched_kv_blocks_total", tier="disk")
            if told:
                break
        assert told, f"in {TURNS} turns, no block was fetched while its prompt was computed"
