"""Children that are stopped (SIGSTOP): for a while, and for good; and that are renewed or told to
leave while something else is going on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from penstock.config.settings import LogSettings, ModelSettings
from penstock.errors import StartupError
from penstock.supervisor import child as child_module
from penstock.supervisor import preparing
from penstock.supervisor.child import Child, ChildSpec
from penstock.supervisor.preparing import Preparation
from testing.processes import freeze
from testing.tiny_models import write_hub_folder
from tests.said import said

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "STOPPED_SECONDS", 0.2)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def sleeping() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec("sleep", "600")


class Forks:
    """Forks what sleeps. let: whether they come at once.  closed: none come any more."""

    def __init__(self) -> None:
        self.let, self.asked, self.closed = asyncio.Event(), 0, False
        self.made: list[asyncio.subprocess.Process] = []

    async def fork(self, *_: object) -> asyncio.subprocess.Process | None:
        self.asked += 1
        await self.let.wait()
        if self.closed:
            return None
        self.made.append(await sleeping())
        return self.made[-1]


@asynccontextmanager
async def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: Forks | None = None
) -> AsyncIterator[Child]:
    """A child that sleeps, while it lives and is started again."""

    async def start(*_: object, **keywords: object) -> asyncio.subprocess.Process:
        return await sleeping()

    monkeypatch.setattr(child_module, "start", start)
    child = Child(
        ChildSpec("worker 0", ()),
        tmp_path / "failure",
        system_was_ready=lambda: True,
        forks=forks,
    )
    run = asyncio.create_task(child.run())
    try:
        await until(lambda: child.pid is not None)
        yield child
    finally:
        await child.stop()
        assert await run is None


async def test_one_that_stays_stopped_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, monkeypatch) as child:
        former = child.pid
        assert former is not None
        freeze(former)
        await until(lambda: child.pid != former)
        assert not psutil.pid_exists(former)
    assert f"child=worker 0 how=pid {former}, killed after it was stopped (SIGSTOP) for 0.2 s" in (
        said(caplog)
    )


async def test_one_that_goes_on_in_between_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[str] = []

    def state_of(pid: int) -> str:
        """The state of a process, in turns: never stopped as often in a row as it takes."""
        states.append("S" if len(states) % 9 == 8 else "T")
        return states[-1]

    monkeypatch.setattr(child_module, "state_of", state_of)
    async with running(tmp_path, monkeypatch) as child:
        former = child.pid
        await until(lambda: len(states) > 3 * child_module.STOPPED_LOOKS)
        assert child.pid == former


async def test_what_a_debugger_holds_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def state_of(pid: int) -> str:
        nonlocal looks
        looks += 1
        return "t"

    monkeypatch.setattr(child_module, "state_of", state_of)
    async with running(tmp_path, monkeypatch) as child:
        former = child.pid
        await until(lambda: looks > 2 * child_module.STOPPED_LOOKS)
        assert child.pid == former


async def test_a_preparation_that_stays_stopped_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = preparing.start

    async def stopped(*arguments: object, **keywords: object) -> asyncio.subprocess.Process:
        process = await start(*arguments, **keywords)  # type: ignore[arg-type]
        freeze(process.pid)
        return process

    monkeypatch.setattr(preparing, "start", stopped)
    model = ModelSettings(
        model=str(write_hub_folder(tmp_path / "small")), cache_dir=str(tmp_path / "cache")
    )
    with pytest.raises(
        StartupError, match=r"could not be prepared: .* stopped \(SIGSTOP\) for 0.2 s"
    ):
        await Preparation(tmp_path / "failure", LogSettings()).folder(model)


async def test_one_that_has_just_died_is_renewed_once_it_has_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = Forks()
    forks.let.set()
    async with running(tmp_path, monkeypatch, forks) as child:
        (former,) = forks.made
        former.kill()
        await former.wait()
        await child.renew(signal.SIGTERM)
        assert child.pid not in (None, former.pid)


async def test_a_fork_that_was_asked_for_before_a_renewal_does_not_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have what was installed before."""
    forks = Forks()
    forks.let.set()
    async with running(tmp_path, monkeypatch, forks) as child:
        (former,) = forks.made
        forks.let.clear()
        former.kill()
        await until(lambda: forks.asked == 2)
        renewing = asyncio.create_task(child.renew(signal.SIGTERM))
        await asyncio.sleep(0)
        forks.let.set()
        await renewing
        *earlier, latest = forks.made
        assert forks.asked == len(forks.made) == 3
        assert child.pid == latest.pid
        assert all(each.returncode is not None for each in earlier)


@pytest.mark.parametrize("closed", [True, False], ids=["no fork", "a fork"])
async def test_nothing_is_executed_for_one_that_is_stopped_while_it_waits_for_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """Whether one still comes or not."""
    forks = Forks()
    forks.let.set()
    async with running(tmp_path, monkeypatch, forks) as child:
        (former,) = forks.made
        forks.let.clear()
        former.kill()
        await until(lambda: forks.asked == 2)
        forks.closed = closed
        started: list[object] = []

        async def start(*given: object) -> asyncio.subprocess.Process:
            started.append(given)
            return await sleeping()

        monkeypatch.setattr(child_module, "start", start)
        await child.stop()
        forks.let.set()
    assert started == []
    assert all(each.returncode is not None for each in forks.made)
