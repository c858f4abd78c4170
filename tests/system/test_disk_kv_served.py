"""A served system with a tier on disk: restarts find what was computed, kill -9 costs nothing, and
what others may not see they don't."""

from __future__ import annotations

import functools
import os
import random
import signal
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock_worker.stores.disk import MAGIC
from testing.metrics_page import PORTS, port_of, read_page
from testing.serving import PATIENCE, Server, wait_until
from testing.slow_store import install_slow_store, reads
from testing.tiny_models import write_gguf

pytestmark = [pytest.mark.timeout(300)]

PROMPTS = [[3 + (7 * n + n * at) % 200 for at in range(100)] for n in range(1, 7)]
BLOCKS = 6
"""Full ones of a prompt."""


def asked(server: Server, prompt: list[int], **fields: Any) -> str:
    body = {"temperature": 0.8, "seed": 5, "max_tokens": 12, "ignore_eos": True, **fields}
    return server.complete(prompt, **body)  # type: ignore[arg-type]


def all_asked(server: Server, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = [pool.submit(asked, server, prompt) for prompt in PROMPTS]
        meanwhile()
        return [answer.result() for answer in answers]


def timeline(server: Server, prompt: list[int]) -> dict[str, Any]:
    """The timeline of the only sequence."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": 1}
    headers = {"x-penstock-timeline": "1"}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE)
    (told,) = reply.json()["penstock_timeline"]["sequences"]
    return dict(told)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.kv"))


def blocks_on(folder: Path) -> int:
    return sum(path.read_bytes().count(MAGIC) for path in files(folder))


def read_by(server: Server) -> float:
    return read_page(port_of(server, "engine")).value(
        "penstock:disk_kv_blocks_total", result="read"
    )


@pytest.fixture
def start(
    start_server: Callable[..., Server], tiny_model: str, tmp_path: Path
) -> Callable[..., Server]:
    disk = ("--disk-kv-dir", str(tmp_path / "kv"), "--disk-kv-gib", "0.01")
    return lambda *flags: start_server(tiny_model, *disk, *PORTS, *flags)


def kill(server: Server, child: str) -> None:
    first = server.child(child)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: server.children().get(f"penstock: {child}") not in (None, first))


def test_kills_restarts_and_damage(start: Callable[..., Server], tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    chance = random.Random(1)
    server = start()
    undisturbed = all_asked(server)
    wait_until(lambda: blocks_on(folder) >= BLOCKS * len(PROMPTS))
    for path in [*files(folder), folder / "lock"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for child in ("worker 0", "engine", "worker 0"):

        def kill_once(child: str = child) -> None:
            time.sleep(chance.random() * 0.1)  # Anywhere: before, while, or after it is read.
            kill(server, child)

        assert all_asked(server, kill_once) == undisturbed
        wait_until(server.ready)
    server.close()

    server = start()
    told = timeline(server, PROMPTS[0])
    assert told["stored_tokens"] == told["cached_tokens"] == 16 * BLOCKS
    assert 0 < told["stored"] <= told["queue"]
    assert all_asked(server) == undisturbed
    assert read_by(server) >= BLOCKS * len(PROMPTS)
    assert timeline(server, PROMPTS[0])["stored_tokens"] == 0, "it is in memory"
    # Neither another salt nor another tenant finds it.
    before = read_by(server)
    assert asked(server, PROMPTS[0], cache_salt="mine") == undisturbed[0]
    assert read_by(server) == before
    server.close()

    for path in files(folder):
        data = bytearray(path.read_bytes())
        for at in range(1000, len(data), 20_000):
            data[at] ^= 0x40
        path.write_bytes(data)
    server = start()
    assert all_asked(server) == undisturbed


def test_a_worker_killed_while_it_writes(start: Callable[..., Server], tmp_path: Path) -> None:
    """Blocks come slowly, so that each life ends in the middle of it."""
    server = start("--disk-kv-write-mib", "0.004")
    undisturbed = all_asked(server)
    for least in (2, 5, 8):
        wait_until(lambda least=least: blocks_on(tmp_path / "kv") >= least)
        assert blocks_on(tmp_path / "kv") < BLOCKS * len(PROMPTS)
        kill(server, "worker 0")
        wait_until(server.ready)
        assert all_asked(server) == undisturbed
    assert len(files(tmp_path / "kv")) == 1, "a later life goes on where one was killed"


def test_two_engine_cores_share_a_folder(start: Callable[..., Server], tmp_path: Path) -> None:
    """Each writes a file of its own while it lives, and a later life reads both."""
    server = start("--data-parallel-size", "2")
    wait_until(lambda: sum(each["ready"] for each in server.get("/status")[1]["engines"]) == 2)
    undisturbed = all_asked(server)
    wait_until(lambda: blocks_on(tmp_path / "kv") >= BLOCKS * len(PROMPTS))
    assert len(files(tmp_path / "kv")) == 2
    assert all_asked(server, lambda: kill(server, "engine 0")) == undisturbed
    server.close()
    server = start()
    assert all_asked(server) == undisturbed
    assert read_by(server) >= BLOCKS * len(PROMPTS)


def test_a_slow_store_and_kills_while_it_is_read(
    start_server: Callable[..., Server],
    tiny_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "slow"
    install_slow_store(tmp_path)
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), known])))
    flags = ("--kv-store", "slow", "--kv-store-address", f"0.05:{folder}", *PORTS)
    server = start_server(tiny_model, *flags)
    undisturbed = all_asked(server)
    wait_until(lambda: len(list(folder.glob("*/*"))) >= BLOCKS * len(PROMPTS))
    server.close()
    assert reads(folder) == 0
    for child in ("engine", "worker 0"):
        # A new life each time: one that has computed knows that this store is slower.
        server = start_server(tiny_model, *flags)
        before = reads(folder)

        def kill_in_mid_read(server: Server, child: str, before: int) -> None:
            wait_until(lambda: reads(folder) > before)
            kill(server, child)

        meanwhile = functools.partial(kill_in_mid_read, server, child, before)
        assert all_asked(server, meanwhile) == undisturbed
        server.close()
    server = start_server(tiny_model, *flags)
    assert all_asked(server) == undisturbed
    assert read_by(server) >= BLOCKS


@pytest.mark.parametrize(
    ("tensor", "pipeline"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.long)]
)
def test_each_rank_keeps_its_part(
    start_server: Callable[..., Server], tmp_path: Path, tensor: int, pipeline: int
) -> None:
    """A block that one of them has lost is computed."""
    folder = tmp_path / "kv"
    model = str(write_gguf(tmp_path / "tiny.gguf", heads=4, kv_heads=2))
    if pipeline > 1:  # It has one layer.
        model = "smollm2-135m"
    server_flags = (
        *("--tensor-parallel-size", str(tensor), "--pipeline-parallel-size", str(pipeline)),
        *("--max-model-len", "128", "--num-kv-blocks", "256", "--dtype", "float32"),
        *("--disk-kv-dir", str(folder), "--disk-kv-gib", "0.5", *PORTS),
    )
    server = start_server(model, *server_flags)
    undisturbed = all_asked(server)
    wait_until(lambda: blocks_on(folder) >= 2 * BLOCKS * len(PROMPTS))
    server.close()
    first, _ = sorted(path for path in folder.glob("*") if path.is_dir())

    server = start_server(model, *server_flags)
    assert all_asked(server) == undisturbed
    assert read_by(server) >= BLOCKS * len(PROMPTS)
    assert all_asked(server, lambda: kill(server, "worker 1")) == undisturbed
    server.close()

    for path in first.glob("*.kv"):
        path.unlink()
    server = start_server(model, *server_flags)
    assert all_asked(server) == undisturbed
    assert read_by(server) == 0
