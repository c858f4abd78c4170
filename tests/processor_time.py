"""Where the processor's time goes: of each file of tests, and of each fixture that tests share.

A plugin of pytest, without `-n`:

    .venv/bin/python -m pytest --processor-time FILE tests/system/test_keys.py

A file's seconds are user and system time of this process and of all that descend from it, between
its first test and the last one's end. They hardly depend on what else the machine does. What a
process still computes after it was given up by its parent isn't in them.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

DEAREST = 15
"""Lines of each table that are printed."""
TICKS = os.sysconf("SC_CLK_TCK")
PARENT, TIMES = 1, slice(11, 15)
"""The places behind a process's name in /proc/PID/stat, from 0: its parent, and its own time in
user and system mode and that of children that it waited for."""


def spent() -> float:
    """Processor seconds of this process and its descendants up to now."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[PARENT])
                ticks[int(entry.name)] = sum(map(int, fields[TIMES]))
    return sum(ticks[process] for process in _descendants(parents, os.getpid())) / TICKS


def _descendants(parents: dict[int, int], root: int) -> set[int]:
    """The process and what descends from it."""
    found, further = {root}, {root}
    while further:
        further = {each for each, parent in parents.items() if parent in further} - found
        found |= further
    return found


class Profile:
    """A run's."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.files: defaultdict[str, float] = defaultdict(float)  # seconds
        self.cases: Counter[str] = Counter()
        self.fixtures: defaultdict[str, float] = defaultdict(float)  # seconds
        self.setups: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        self.before = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        result = yield
        name = item.nodeid.partition("::")[0]
        self.cases[name] += 1
        if nextitem is None or nextitem.path != item.path:
            now = spent()
            self.files[name] += now - self.before
            self._write()
            self.before = spent()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Those that it asks for have been set up before, if they are arguments of it."""
        if fixturedef.scope == "function":
            return (yield)
        before = spent()
        result = yield
        name = f"{fixturedef.baseid}::{fixturedef.argname}"
        self.fixtures[name] += spent() - before
        self.setups[name] += 1
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for kind, seconds, times in self._tables():
            terminalreporter.section(f"processor seconds of each {kind}, and how often")
            for name, took in dearest_first(seconds)[:DEAREST]:
                terminalreporter.write_line(f"{took:>8.1f} {times[name]:>6}  {name}")
            terminalreporter.write_line(f"{sum(seconds.values()):>8.1f} in all")

    def _write(self) -> None:
        """Of what has run by now: a long run may be ended."""
        self.file.write_text(
            "".join(
                f"{kind}\t{name}\t{took:.2f}\t{times[name]}\n"
                for kind, seconds, times in self._tables()
                for name, took in dearest_first(seconds)
            ),
            encoding="utf-8",
        )

    def _tables(self) -> tuple[tuple[str, dict[str, float], Counter[str]], ...]:
        return ("file", self.files, self.cases), ("fixture", self.fixtures, self.setups)


def dearest_first(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda each: -each[1])


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processor-time",
        type=Path,
        metavar="FILE",
        help="writes there how much of it each file and each shared fixture takes",
    )


def configure(config: pytest.Config) -> None:
    file = config.getoption("--processor-time")
    if file is not None:
        config.pluginmanager.register(Profile(file))
