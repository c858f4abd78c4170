"""Streams move away from an engine core that is told to leave: the other one fetches their KV, and
what clients read has the same bytes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import gguf
import httpx
import pytest

from testing.metrics_page import PORTS, port_of, read_page
from testing.serving import PATIENCE, Server, wait_until
from testing.tiny_models import write_gguf

pytestmark = [pytest.mark.timeout(600)]

CONTEXT = 1024
FLAGS = ("--num-kv-blocks", "512", "--max-num-batched-tokens", "64")
TWO = ("--data-parallel-size", "2", "--kv-roles", "both,both", "--kv-handover-seconds", "0")
PROMPTS = [[3 + (7 * n + n * at) % 200 for at in range(160 + n)] for n in range(1, 5)]


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny one whose streams take their time."""
    path = tmp_path_factory.mktemp("long") / "long.gguf"

    def lengthen(writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(CONTEXT)

    return str(write_gguf(path, without=("context_length",), adjust=lengthen))


def stream(server: Server, prompt: list[int], salt: str, begun: Callable[[], None]) -> str:
    """Its text. begun: called when it has come some way."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": 700,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": 5,
        "cache_salt": salt,
        "stream": True,
    }
    text, chunks = "", 0
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=4 * PATIENCE) as r:
        assert r.status_code == 200, r.read()
        for line in r.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                text += "".join(choice["text"] for choice in chunk["choices"])
                chunks += 1
                if chunks == 20:
                    begun()
    return text


def streams(server: Server, salt: str, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    """All at once. meanwhile: called when each has come some way."""
    begun = [Event() for _ in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        asked = [
            pool.submit(stream, server, prompt, salt, event.set)
            for prompt, event in zip(PROMPTS, begun, strict=True)
        ]
        for event in begun:
            assert event.wait(PATIENCE)
        meanwhile()
        return [each.result() for each in asked]


def ready(server: Server) -> bool:
    status, told = server.get("/status")
    return status == 200 and sum(each["ready"] for each in told["engines"]) == 2


def fetched(page: str) -> tuple[float, float]:
    """What an engine core has fetched so far: requests that it went on with, and blocks."""
    told = read_page(page)
    return (
        told.value("penstock:requests_resumed_total"),
        told.value("penstock:disk_kv_blocks_total", result="read"),
    )


@pytest.fixture(scope="module")
def two(long_model: str) -> Iterator[Server]:
    """Two engine cores that hand over at once."""
    with Server(long_model, *FLAGS, *TWO, "--shutdown-timeout", "300", *PORTS) as server:
        wait_until(lambda: ready(server))
        yield server


@pytest.fixture(scope="module")
def undisturbed(two: Server) -> list[str]:
    return streams(two, "undisturbed")


def wait_back(server: Server, title: str, former: int) -> None:
    """Until the process has a successor, and both engine cores are ready."""
    wait_until(lambda: server.children().get(f"penstock: {title}") not in (None, former))
    wait_until(lambda: ready(server))


def test_streams_move_away_from_an_engine_core_that_drains(
    two: Server, undisturbed: list[str]
) -> None:
    for turn in range(12):
        leaving, staying = turn % 2, 1 - turn % 2
        first, page = two.child(f"engine {leaving}"), port_of(two, f"engine {staying}")
        before = fetched(page)
        texts = streams(two, f"turn {turn}", lambda pid=first: os.kill(pid, signal.SIGTERM))
        assert texts == undisturbed, turn
        resumed, blocks = (now - then for now, then in zip(fetched(page), before, strict=True))
        print(f"turn {turn}: {resumed:g} streams moved, {blocks:g} blocks fetched")
        wait_back(two, f"engine {leaving}", first)
        if resumed and blocks >= len(PROMPTS[0]) // 16:  # A prompt's at least.
            peers = read_page(port_of(two, f"worker {staying}"))
            name = "penstock:worker_peer_kv_blocks_total"
            assert peers.value(name, result="fetched") >= blocks
            return
    raise AssertionError("in 12 turns, no stream's blocks were fetched")


@pytest.mark.parametrize("killed", ["worker 0", "worker 1", "engine 1"])
def test_whoever_is_killed_meanwhile(two: Server, undisturbed: list[str], killed: str) -> None:
    """Who leaves is killed, and who is to go on."""
    leaving, victim = two.child("engine 0"), two.child(killed)

    def disturb() -> None:
        os.kill(leaving, signal.SIGTERM)
        os.kill(victim, signal.SIGKILL)

    assert streams(two, killed, disturb) == undisturbed
    wait_back(two, "engine 0", leaving)
    wait_back(two, killed, victim)
