"""Templates that misbehave are stopped; the process that fills them comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from penstock.errors import InvalidRequest, Overloaded
from penstock.text.render.pool import MAX_PROCESSES, RenderPool
from penstock.text.render.process import RenderProcess
from penstock.text.render.wire import Bounds, Fill, TemplateSource
from testing.processes import freeze

pytestmark = pytest.mark.timeout(240)

FINE = "{{ messages[0].content }}"
STALLS = {
    "a loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a sum in C": "{{ (3 ** 99999999) | string | length }}",
    "recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
}
LARGE = {
    "a text": "{{ ('a' * messages[0].n) | length }}",
    "a list": "{{ ([0] * messages[0].n) | length }}",
}


@pytest.fixture
def pool() -> Iterator[RenderPool]:
    """On a busy machine, too, nothing that ends passes for stalled."""
    yield from joined(Bounds(cpu=20.0))


@pytest.fixture
def hasty() -> Iterator[RenderPool]:
    yield from joined(Bounds(cpu=0.5))


def joined(bounds: Bounds) -> Iterator[RenderPool]:
    made = RenderPool(bounds)
    leave = made.join()
    try:
        yield made
    finally:
        leave()
        assert made.pids == []


def text_of(
    pool: RenderPool, template: int, source: str, variables: dict[str, Any], max_length: int
) -> str:
    return pool.filled(TemplateSource(source), Fill(template, variables, max_length)).text


async def filled_text(
    pool: RenderPool, template: int, source: str, variables: dict[str, Any], max_length: int
) -> str:
    asked = Fill(template, variables, max_length)
    return (await pool.filled_async(TemplateSource(source), asked)).text


def fill(pool: RenderPool, source: str, content: str = "x", **fields: Any) -> str:
    message = {"role": "user", "content": content, **fields}
    return text_of(pool, hash(source), source, {"messages": [message]}, 1000)


@pytest.mark.parametrize("kind", STALLS)
def test_what_stalls_is_stopped(hasty: RenderPool, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=r"takes longer than 0\.5 s"):
        fill(hasty, STALLS[kind])
    assert fill(hasty, FINE) == "x"


@pytest.mark.parametrize("kind", LARGE)
def test_what_asks_for_a_gigabyte_is_refused(pool: RenderPool, kind: str) -> None:
    with pytest.raises(InvalidRequest, match="needs more memory"):
        fill(pool, LARGE[kind], n=10**9)
    assert fill(pool, LARGE[kind], n=1000) == "1000"


def test_what_brings_the_process_down_is_the_templates_fault(pool: RenderPool) -> None:
    """Refusals come as errors of the request, whatever the way out of the template."""
    deep = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
    with pytest.raises(InvalidRequest, match=r"RecursionError|brought its process down|refused"):
        fill(pool, deep)
    assert fill(pool, FINE) == "x"


async def test_others_are_not_held_up_by_one_that_stalls(pool: RenderPool) -> None:
    stalled = asyncio.create_task(filled_text(pool, 1, STALLS["a loop"], {"messages": []}, 1000))
    await asyncio.sleep(0.01)
    fine = [filled_text(pool, 2, FINE, {"messages": [{"content": str(i)}]}, 9) for i in range(20)]
    assert await asyncio.gather(*fine) == [str(i) for i in range(20)]
    assert not stalled.done(), "it ended before the others, so nothing was shown"
    stalled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stalled


async def test_the_loop_goes_on_meanwhile(pool: RenderPool, hasty: RenderPool) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    stalled = asyncio.create_task(filled_text(pool, 1, STALLS["a loop"], {}, 9))
    async with asyncio.timeout(60):
        while ticks <= 5:
            await asyncio.sleep(0.01)
    assert not stalled.done()
    stalled.cancel()
    with pytest.raises(InvalidRequest, match="longer than"):
        await filled_text(hasty, 1, STALLS["a loop"], {}, 9)
    ticking.cancel()


async def test_a_filling_that_nobody_wants_any_more(pool: RenderPool) -> None:
    task = asyncio.create_task(filled_text(pool, 1, STALLS["a loop"], {}, 9))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    message = {"messages": [{"content": "y"}]}
    assert await filled_text(pool, 2, FINE, message, 9) == "y"


def test_whole_numbers_of_any_size(pool: RenderPool) -> None:
    """Schemas of ledgers have them: a maximum of 256 bits."""
    tools = [{"maximum": 2**256 - 1, "minimum": -(2**200), "step": 0.5, "text": "<ü>"}]
    template = "{% for key, value in tools[0].items() %}{{ key }}={{ value }} {% endfor %}"
    filled = text_of(pool, 1, template, {"tools": tools}, 1000)
    assert filled == "".join(f"{key}={value} " for key, value in tools[0].items())


def fill_in_a_loop(pool: RenderPool) -> str:
    variables = {"messages": [{"role": "user", "content": "x"}]}
    return asyncio.run(filled_text(pool, 1, FINE, variables, 1000))


def fill_and_block(pool: RenderPool) -> str:
    return fill(pool, FINE)


def test_a_killed_process_is_replaced_unseen(pool: RenderPool) -> None:
    assert fill(pool, FINE) == "x"
    for _ in range(3):
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        assert fill(pool, FINE) == "x"
        assert pool.pids != [pid]


@pytest.mark.parametrize("ask", [fill_and_block, fill_in_a_loop])
def test_processes_that_keep_dying_blame_nobody(
    pool: RenderPool, ask: Callable[[RenderPool], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take, take_async = pool._take, pool._take_async

    def killed(process: RenderProcess) -> RenderProcess:
        os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(process.pid)], timeout=1)
        return process

    async def killed_async() -> RenderProcess:
        return killed(await take_async())

    monkeypatch.setattr(pool, "_take", lambda: killed(take()))
    monkeypatch.setattr(pool, "_take_async", killed_async)
    with pytest.raises(Overloaded, match="died, and so did the next ones") as told:
        ask(pool)
    assert told.value.retry_after == 1.0
    monkeypatch.undo()
    assert fill(pool, FINE) == "x"


def test_many_threads_share_it(pool: RenderPool) -> None:
    results: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            results.append(fill(pool, f"{number % 7} {FINE}", f"{number}-{turn}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [f"{n % 7} {n}-{turn}" for n in range(10) for turn in range(20)]
    assert sorted(results) == sorted(expected)
    assert pool._count <= MAX_PROCESSES


def test_more_templates_than_a_process_keeps(pool: RenderPool) -> None:
    for _ in range(2):
        for number in range(40):
            text = text_of(pool, number, f"{number} {FINE}", {"messages": [{"content": "x"}]}, 99)
            assert text == f"{number} x"


def test_a_process_that_grew_gives_way(pool: RenderPool) -> None:
    assert fill(pool, FINE) == "x"
    before = pool.pids
    source = "{% set big = 'ab' * messages[0].n %}{{ big | length }}{{ keep(big) }}"
    with pytest.raises(InvalidRequest):  # keep is undefined: the traceback holds `big` on
        fill(pool, source, n=80_000_000)
    assert fill(pool, FINE) == "x"
    (pid,) = pool.pids
    assert psutil.Process(pid).memory_info().rss < 60 << 20
    assert before


def test_it_is_kept_however_large_the_front_end_is() -> None:
    program = (
        "ballast = bytearray(b'x' * (200 << 20))\n"
        "from penstock.text.render.pool import RenderPool\n"
        "from penstock.text.render.wire import Bounds, Fill, TemplateSource\n"
        "pool = RenderPool(Bounds(cpu=20.0)); pool.join(); pids = set()\n"
        "for _ in range(3):\n"
        "    pool.filled(TemplateSource('x'), Fill(1, {}, 9)); pids |= set(pool.pids)\n"
        "print(len(pids))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stderr


def test_it_is_small_and_named(pool: RenderPool) -> None:
    assert fill(pool, FINE) == "x"
    (pid,) = pool.pids
    process = psutil.Process(pid)
    assert " ".join(process.cmdline()).strip() == "penstock: template"
    assert process.memory_info().rss < 32 << 20
    with open(f"/proc/{pid}/limits") as limits:
        line = next(line for line in limits if line.startswith("Max address space"))
    assert int(line.split()[3]) == Bounds().memory


def test_it_dies_with_its_front_end() -> None:
    program = (
        "import os, signal\n"
        "from penstock.text.render.pool import RenderPool\n"
        "pool = RenderPool(); pool.join(); print(pool.pids[0], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pid = int(done.stdout)
    deadline = time.monotonic() + 60
    while runs(pid):
        if time.monotonic() >= deadline:
            raise TimeoutError("the renderer outlived its front end")
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """One that nobody has reaped doesn't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_fork_does_not_share_its_processes(pool: RenderPool) -> None:
    assert fill(pool, FINE) == "x"
    child = os.fork()
    if not child:
        ok = pool.pids == [] and fill(pool, FINE, "forked") == "forked"
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fill(pool, FINE) == "x"


@pytest.mark.parametrize("ask", [fill_and_block, fill_in_a_loop])
def test_a_frozen_process_blames_nobody(ask: Callable[[RenderPool], str]) -> None:
    """Its template used no processor time: the request may come again, and soon."""
    for pool in joined(Bounds()):
        (pid,) = pool.pids
        freeze(pid)
        begun = time.monotonic()
        with pytest.raises(Overloaded, match="stood still") as told:
            ask(pool)
        assert time.monotonic() - begun < 15  # Twenty would be those of its start.
        assert told.value.retry_after == 1.0
        assert fill(pool, FINE) == "x"
        assert not psutil.pid_exists(pid)
