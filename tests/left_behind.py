"""Processes that tests leave behind: a warning names the test during which each of them began.

A plugin of pytest. What a module's tests or fixtures start has to have ended, and been waited for,
when the module's last test is torn down; what a session's fixture starts may live as long as the
session. `-W error::tests.left_behind.LeftBehind` makes an error of it.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

Identity = tuple[int, int]
"""A process: its pid, and when it began, in clock ticks after boot. Pids are given again."""

PATIENCE = 5.0
"""Seconds for what was told to end and hasn't been waited for yet."""
HELPERS = (
    "testing.preloaded",
    "tests: preloaded",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "penstock: template",
)
"""In command lines, or titles: begun when they are first needed, they serve the whole session. The
last one serves whatever templates this process has, which caches and tracebacks keep."""
STARTED_AT = 19
"""The place of the time of beginning behind a process's name in /proc/PID/stat, from 0."""


class LeftBehind(UserWarning):
    """Processes that should have ended."""


class Ledger:
    """When each child of this process began."""

    def __init__(self) -> None:
        self.known = children()
        self.begun: dict[Identity, str] = {}  # during which test

    def keep(self, processes: set[Identity]) -> None:
        """They may live as long as the session."""
        self.known |= processes - self.begun.keys()

    def note(self, test: str) -> None:
        """What has begun since the last time began during this test."""
        for process in children() - self.known:
            self.begun.setdefault(process, test)

    def left(self, patience: float = PATIENCE) -> list[str]:
        """Lines on those that are still there after so many seconds. Each is told of once."""
        deadline = time.monotonic() + patience
        while (late := self._late()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.known |= set(late)
        told = [f"{self.begun[process]}: {text}" for process, text in late.items()]
        self.begun.clear()
        return told

    def _late(self) -> dict[Identity, str]:
        multiprocessing.active_children()  # It waits for those of its own that have ended.
        described = {process: described_as(process) for process in children() & self.begun.keys()}
        return {
            process: text
            for process, text in described.items()
            if not any(helper in text for helper in HELPERS)
        }


def children() -> set[Identity]:
    """Children of this process, those that ended and weren't waited for among them. None where
    there is no /proc."""
    pids: list[str] = []
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # A thread that has ended meanwhile.
            pids += listed.read_text().split()
    found = set()
    for pid in pids:
        with suppress(OSError):
            found.add((int(pid), int(_stat(int(pid))[STARTED_AT])))
    return found


def described_as(process: Identity) -> str:
    """Its pid, whether it has ended, and its command line, as far as one can still see them."""
    pid, _ = process
    try:
        if _stat(pid)[0] == "Z":
            return f"{pid} has ended, and nobody waited for it"
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"{pid}"
    return f"{pid} is alive: {b' '.join(words).decode(errors='replace').strip()[:200]}"


def _stat(pid: int) -> list[str]:
    """What stands behind the name, which may have spaces and brackets: the state first."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


_LEDGER = Ledger()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    before = children() if fixturedef.scope == "session" else None
    try:
        return (yield)
    finally:
        if before is not None:
            _LEDGER.keep(children() - before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    _LEDGER.note(item.nodeid)
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _LEDGER.note(item.nodeid)
        if left := _LEDGER.left():
            warnings.warn(LeftBehind("left behind\n" + "\n".join(left)), stacklevel=1)
    return result
