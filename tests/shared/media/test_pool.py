"""Processes that prepare media: what they give, and what becomes of what would hurt."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from penstock.errors import Overloaded
from penstock.media.pool import ATTEMPTS, LARGE, MediaPool, MediaProcess, Unpreparable
from penstock.media.prepared import read
from penstock.media.wire import ItemBounds, Prepare, ProcessBounds
from testing.processes import freeze
from tests.shared.media.pictures import PREPARATION, picture, saved
from tests.shared.media.test_picture import bomb

LIMITS = ProcessBounds(memory=1 << 30, cpu=20.0)


def task(data: bytes, max_pixels: int = 1 << 24) -> Prepare:
    return Prepare(PREPARATION, data, ItemBounds(max_pixels))


@pytest.fixture
async def pool() -> AsyncIterator[MediaPool]:
    pool = MediaPool(LIMITS, 2)
    yield pool
    pids = pool.pids
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_an_item_is_prepared_as_in_this_process(pool: MediaPool) -> None:
    assert not pool.pids  # Nothing is started before it is needed.
    answer = await pool.prepare(task(saved(picture())))
    assert answer.shape == (30, 40)
    found = read(answer.data)
    assert np.array_equal(found["pixels"], PREPARATION.prepare(picture())["pixels"])
    pixels = Prepare(PREPARATION, picture().tobytes(), ItemBounds(1 << 20), (40, 30))
    assert await pool.prepare(pixels) == answer
    assert len(pool.pids) == 1


async def test_several_at_a_time_and_no_more(pool: MediaPool) -> None:
    files = [saved(picture(seed=seed)) for seed in range(6)]
    answers = await asyncio.gather(*(pool.prepare(task(file)) for file in files))
    assert len({answer.data for answer in answers}) == 6
    assert len(pool.pids) == 2
    assert pool.counts.items == 6


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError
        await asyncio.sleep(0.02)


async def test_of_processes_without_work_one_stays(
    pool: MediaPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [saved(picture(seed=seed)) for seed in range(2)]
    await asyncio.gather(*(pool.prepare(task(file)) for file in files))
    both = pool.pids
    monkeypatch.setattr("penstock.media.pool.SPARE_SECONDS", 0.0)
    await asyncio.gather(*(pool.prepare(task(file)) for file in files))
    await until(lambda: len(pool.pids) == 1 and sum(map(psutil.pid_exists, both)) == 1)
    left = pool.pids
    await pool.prepare(task(files[0]))
    assert pool.pids == left


async def test_a_bad_file_leaves_its_process_alone(pool: MediaPool) -> None:
    await pool.prepare(task(saved(picture())))
    pids = pool.pids
    with pytest.raises(Unpreparable, match="unsupported format"):
        await pool.prepare(task(b"<svg/>"))
    with pytest.raises(Unpreparable, match="at most 100 are accepted"):
        await pool.prepare(task(saved(picture()), 100))
    assert pool.pids == pids
    assert pool.counts.refused == 2


async def test_what_is_far_too_long_is_refused(pool: MediaPool) -> None:
    by_edge = PREPARATION
    squared = msgspec.structs.replace(PREPARATION, squared=True, shortest_edge=0)
    for image in (by_edge, squared):
        for width, height in ((1, 12_000), (1, 1_000_000), (201, 1)):
            rows = Prepare(image, bytes(3 * width * height), ItemBounds(1 << 24), (width, height))
            with pytest.raises(Unpreparable, match="200 times the pixels of its shorter one"):
                await pool.prepare(rows)
        near = Prepare(image, bytes(3 * 200), ItemBounds(1 << 24), (200, 1))
        assert (await pool.prepare(near)).shape == (1, 200)
    assert pool.counts.ended == 0


async def test_what_nobody_thought_of_is_no_death(pool: MediaPool) -> None:
    """An unknown filter: Pillow raises what no bound of ours foresees."""
    pixels = msgspec.structs.replace(PREPARATION.pixels, resample=77)
    image = msgspec.structs.replace(PREPARATION, pixels=pixels)
    with pytest.raises(Unpreparable, match="can't be prepared"):
        await pool.prepare(Prepare(image, saved(picture()), ItemBounds(1 << 24)))
    assert len(pool.pids) == 1


async def test_a_bomb_ends_a_helper_and_no_more() -> None:
    pool = MediaPool(ProcessBounds(memory=600 << 20, cpu=20.0), 1)
    try:
        with pytest.raises(Unpreparable, match="needs more memory"):
            await pool.prepare(task(bomb(20_000, 20_000), 1 << 40))
        assert pool.counts.ended == 1
        assert (await pool.prepare(task(saved(picture())))).shape == (30, 40)
    finally:
        pool.close()


async def test_what_takes_too_long_is_stopped() -> None:
    pool = MediaPool(ProcessBounds(memory=2 << 30, cpu=0.05), 1)
    try:
        with pytest.raises(Unpreparable, match=r"takes longer than 0\.05 s"):
            await pool.prepare(task(saved(picture(3000, 3000), "PNG", compress_level=0), 1 << 40))
        assert pool.counts.ended == 1
        assert not pool.pids
    finally:
        pool.close()


async def test_a_frozen_helper_is_no_fault_of_the_item(pool: MediaPool) -> None:
    await pool.prepare(task(saved(picture())))
    (pid,) = pool.pids
    freeze(pid)
    with pytest.raises(Overloaded, match="stood still"):
        await pool.prepare(task(saved(picture())))
    assert pid not in pool.pids
    assert not psutil.pid_exists(pid)
    assert not pool.counts.ended
    await pool.prepare(task(saved(picture())))


async def test_a_killed_helper_is_replaced(pool: MediaPool) -> None:
    await pool.prepare(task(saved(picture())))
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    assert (await pool.prepare(task(saved(picture())))).shape == (30, 40)
    assert pool.pids != [pid]


LARGE_ITEM = msgspec.structs.replace(PREPARATION, height=700, width=700, shortest_edge=0)
"""Prepared: 1.5 MB."""


async def test_a_large_item_does_not_come_through_the_event_loop(
    pool: MediaPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    receive, wanted = loop.sock_recv_into, []

    async def spied(sock: socket.socket, buffer: memoryview) -> int:
        wanted.append(len(buffer))
        return await receive(sock, buffer)

    monkeypatch.setattr(loop, "sock_recv_into", spied)
    for seed in range(3):
        image = picture(seed=seed)
        answer = await pool.prepare(Prepare(LARGE_ITEM, saved(image), ItemBounds(1 << 24)))
        assert len(answer.data) > LARGE
        found = read(answer.data)["pixels"]
        assert np.array_equal(found, LARGE_ITEM.prepare(image)["pixels"])
        assert (await pool.prepare(task(saved(image)))).shape == (30, 40)
    assert len(pool.pids) == 1
    assert max(wanted) < 1000 + 3 * 28 * 28, "heads, and small items"


async def test_who_leaves_while_a_large_item_comes(
    pool: MediaPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.prepare(task(saved(picture())))
    (pid,) = pool.pids
    begun = threading.Event()
    receive = MediaProcess._receive_all

    def spied(process: MediaProcess, size: int) -> bytes:
        freeze(pid)
        begun.set()
        return receive(process, size + 1)  # That never come.

    monkeypatch.setattr(MediaProcess, "_receive_all", spied)
    work = asyncio.create_task(
        pool.prepare(Prepare(LARGE_ITEM, saved(picture()), ItemBounds(1 << 24)))
    )
    await asyncio.to_thread(begun.wait)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not psutil.pid_exists(pid)
    monkeypatch.undo()
    answer = await pool.prepare(Prepare(LARGE_ITEM, saved(picture()), ItemBounds(1 << 24)))
    assert len(answer.data) > LARGE


async def test_helpers_that_were_all_killed_cost_nobody_a_request() -> None:
    pool = MediaPool(LIMITS, ATTEMPTS)
    try:
        await asyncio.gather(
            *(pool.prepare(task(saved(picture(seed=seed)))) for seed in range(ATTEMPTS))
        )
        assert len(pool.pids) == ATTEMPTS
        processes = [psutil.Process(pid) for pid in pool.pids]
        for process in processes:
            process.kill()
        while not all(process.status() == psutil.STATUS_ZOMBIE for process in processes):
            await asyncio.sleep(0.01)
        assert (await pool.prepare(task(saved(picture())))).shape == (30, 40)
        assert len(pool.pids) == 1
    finally:
        pool.close()


async def test_a_tenant_waits_for_an_item_of_anothers_and_not_for_all() -> None:
    pool = MediaPool(LIMITS, 1)
    order: list[str] = []

    async def prepare(tenant: str, seed: int) -> None:
        await pool.prepare(task(saved(picture(seed=seed))), tenant)
        order.append(tenant)

    try:
        work = [asyncio.create_task(prepare("many", seed)) for seed in range(5)]
        await asyncio.sleep(0)
        await asyncio.gather(*work, prepare("one", 9))
        assert order.index("one") == 2
    finally:
        pool.close()


async def test_who_leaves_in_between_ends_its_helper(pool: MediaPool) -> None:
    await pool.prepare(task(saved(picture())))
    (pid,) = pool.pids
    freeze(pid)
    work = asyncio.create_task(pool.prepare(task(saved(picture()))))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert not psutil.pid_exists(pid)
    assert (await pool.prepare(task(saved(picture())))).shape == (30, 40)


async def test_a_helper_has_nothing_of_ours(pool: MediaPool) -> None:
    await pool.prepare(task(saved(picture())))
    process = psutil.Process(pool.pids[0])
    assert set(process.environ()) <= {"PATH", "LD_LIBRARY_PATH"} | {
        f"{name}_NUM_THREADS" for name in ("OPENBLAS", "OMP", "MKL")
    } | {"LC_CTYPE"}
    assert process.name() == "penstock: media"
    with open(f"/proc/{process.pid}/limits") as limits:
        text = limits.read()
    assert str(LIMITS.memory) in text
    libraries = Path(f"/proc/{process.pid}/maps").read_text()
    assert "libtorch" not in libraries


async def test_a_closed_pool_prepares_nothing() -> None:
    pool = MediaPool(LIMITS, 1)
    pool.close()
    with pytest.raises(Overloaded):
        await pool.prepare(task(saved(picture())))
