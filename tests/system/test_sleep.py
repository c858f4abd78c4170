"""A model that sleeps gives its memory back, and says the same as before once it is awake: over
HTTP, in the library, and when processes die meanwhile."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import LLM, AsyncLLM, SamplingParams
from penstock.errors import InvalidRequest
from testing.serving import PATIENCE, Server, wait_until
from testing.tiny_models import write_gguf
from tests.system.test_pause import Stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 2**20
PROMPTS = [[number % 250 + 1] * 120 for number in range(64)]
BODY = {"prompt": PROMPTS, "max_tokens": 4, "temperature": 0.8, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One layer, some 20 MiB of weights and 3 KiB of KV a token."""
    folder = tmp_path_factory.mktemp("wide")
    return str(write_gguf(folder / "wide.gguf", heads=24, kv_heads=24, head_dim=32))


@pytest.fixture(scope="module")
def running(wide_model: str) -> Iterator[Server]:
    with Server(wide_model, "--num-kv-blocks", "1000", "--dtype", "float32") as server:
        yield server


def said(server: Server, path: str, **query: Any) -> Any:
    ask = httpx.get if path == "is_sleeping" else httpx.post
    reply = ask(f"{server.url}/{path}", params=query, timeout=4 * PATIENCE)
    assert reply.status_code == 200, reply.text
    return reply.json()


def answers(server: Server) -> list[str]:
    reply = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=4 * PATIENCE)
    assert reply.status_code == 200, reply.text
    return [choice["text"] for choice in reply.json()["choices"]]


def resident(server: Server) -> int:
    """Bytes of the worker's own memory that the machine holds."""
    status = Path(f"/proc/{server.child('worker 0')}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def mapped(server: Server, least: int) -> tuple[int, int]:
    """The worker's anonymous mappings of at least so many bytes that it may write to: how many, and
    what of them the machine holds, in bytes. Others are addresses alone: for a thread's first
    allocation, glibc takes 128 MiB of them for a moment, to give all but an aligned part back."""
    found = []
    nameless = False
    for line in Path(f"/proc/{server.child('worker 0')}/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            nameless, size = len(values) == 4 and values[0].startswith("rw"), 0
        elif name == "Size:":
            size = int(values[0]) * 1024
        elif name == "Anonymous:" and nameless and size >= least:
            found.append(int(values[0]) * 1024)
    return len(found), sum(found)


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.long)])
def test_a_worker_grows_by_the_blocks_that_are_used_and_no_more_than_its_log_says(
    start_server: Callable[..., Server], wide_model: str, rounds: int
) -> None:
    """The machine counts a block as used from its first use on, and it stays. Nothing but the pool
    has a mapping of half of its size: what steps work with is less."""
    server = start_server(wide_model, "--num-kv-blocks", "2000", "--dtype", "float32")
    said = re.search(r'kv_memory="([\d.,]+) MiB"', server.stderr)
    assert said is not None, server.stderr
    pool = round(float(said[1].replace(",", "")) * MIB)
    # Keys and values have a half each; where these lie side by side, or beside another mapping, the
    # machine makes one of them. The log has tenths of a MiB: 93.8 for 93.75.
    least = (pool - MIB // 10) // 2
    a_round = 64 * 120 * pool // 32_000

    def grown_after(first: int) -> int:
        """What the pool holds once 64 prompts were answered that nobody has asked before."""
        prompts = [[first, number + 1, *[7] * 118] for number in range(64)]
        body = {**BODY, "prompt": prompts, "max_tokens": 1}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=4 * PATIENCE)
        assert reply.status_code == 200, reply.text
        count, held = mapped(server, least)
        assert count == parts
        return held - at_first

    parts, at_first = mapped(server, least)
    assert parts in (1, 2)
    growth = [grown_after(first) for first in range(1, rounds + 1)]
    for number, grown in enumerate(growth[:2], 1):
        assert grown == pytest.approx(number * a_round, abs=0.08 * pool), growth
    if rounds > 2:
        assert 0.9 * pool <= growth[-1] <= pool + 2 * MIB, growth
        assert growth[-1] - growth[-2] <= MIB, growth


def test_memory_goes_back_and_answers_stay(running: Server) -> None:
    before = answers(running)
    full = resident(running)
    freed = []
    for level in (1, 2):
        assert said(running, "is_sleeping") == {"is_sleeping": False}
        assert said(running, "sleep", level=level) == {"status": "asleep"}
        assert said(running, "is_sleeping") == {"is_sleeping": True}
        freed.append(full - resident(running))
        assert httpx.get(f"{running.url}/health", timeout=PATIENCE).status_code == 200
        assert said(running, "wake_up") == {"status": "awake"}
        assert answers(running) == before
    # 7,936 tokens of 6 KiB. What the weights bring at level 2 is less than what libraries may take
    # meanwhile: tests/worker/test_sleep.py looks whether anybody holds them.
    assert min(freed) > 30 * MIB, freed


def test_streams_wait_and_go_on(running: Server) -> None:
    alone = Stream(running.url)
    alone.join()
    assert alone.finish == "length"
    streams = [Stream(running.url) for _ in range(2)]
    wait_until(lambda: all(each.text for each in streams))
    said(running, "sleep", level=2, mode="keep")
    late = Stream(running.url)
    assert said(running, "wake_up", tags="weights") == {"status": "waking"}
    assert said(running, "is_sleeping") == {"is_sleeping": True}
    assert said(running, "wake_up", tags="kv_cache") == {"status": "awake"}
    for each in (*streams, late):
        each.join(4 * PATIENCE)
        assert (each.text, each.finish) == (alone.text, "length")


@pytest.mark.parametrize("name", ["worker 0", "engine"])
def test_a_process_that_dies_meanwhile_comes_back_asleep(running: Server, name: str) -> None:
    before = answers(running)
    said(running, "sleep", level=2)
    victim, boot = running.child(name), status(running)["boot"]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: running.processes().get(name) not in (None, victim))
    if name == "engine":
        # Else the gateway may not have noticed, and would ask the one that is gone.
        wait_until(lambda: status(running)["boot"] not in (None, boot))
    wait_until(lambda: (status(running)["engine"] or {}).get("asleep") is True)
    assert said(running, "is_sleeping") == {"is_sleeping": True}
    assert said(running, "wake_up") == {"status": "awake"}
    assert answers(running) == before


def test_an_idle_model_sleeps_and_the_next_request_wakes_it(tiny_model: str) -> None:
    idle = ("--idle-sleep-minutes", "0.02", "--idle-sleep-level", "2")
    with Server(tiny_model, "--gateways", "2", *idle) as server:

        def answer() -> str:
            return server.complete([5] * 40, max_tokens=8, temperature=0.8, seed=7, ignore_eos=True)

        def asleep() -> bool:
            found = status(server)["engine"]
            return found is not None and found["asleep"]

        before = answer()
        for victim in (None, "worker 0", "engine"):
            wait_until(asleep)
            if victim is not None:
                pid, boot = server.child(victim), status(server)["boot"]
                os.kill(pid, signal.SIGKILL)
                wait_until(
                    lambda victim=victim, pid=pid: server.processes().get(victim) not in (None, pid)
                )
                if victim == "engine":
                    wait_until(lambda boot=boot: server.engine_replaced(boot))
            assert answer() == before
        wait_until(asleep)
        wait_until(lambda: server.each_gateway(lambda status: status["ready"]))


def status(server: Server) -> Any:
    """With that of its only engine core."""
    return httpx.get(f"{server.url}/status", timeout=PATIENCE).json()


def test_in_the_library(tiny_model: str) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.9, seed=3, ignore_eos=True)

    async def woken() -> tuple[str, str]:
        async with AsyncLLM(tiny_model) as llm:

            async def generate(name: str) -> str:
                text = ""
                async for output in llm.generate("abc", params, request_id=name):
                    text = output.outputs[0].text
                return text

            alone = await generate("a")
            await llm.sleep()
            assert await llm.is_sleeping()
            waits = asyncio.create_task(generate("b"))
            await llm.wake_up()
            assert not await llm.is_sleeping()
            return alone, await waits

    alone, after = asyncio.run(woken())
    assert alone == after
    with LLM(tiny_model) as llm:
        llm.sleep(level=2)
        llm.wake_up(tags=["weights", "kv_cache"])
        (output,) = llm.generate(["abc"], params)
        assert output.outputs[0].text == alone
        with pytest.raises(InvalidRequest, match="level is 3; allowed: 1, 2"):
            llm.sleep(3)
        with pytest.raises(InvalidRequest, match="tags has 'KV'; allowed: weights, kv_cache"):
            llm.wake_up(["KV"])
