"""Which tests failed because they ran out of time, and whether others failed otherwise.

A plugin of pytest. `--out-of-time FILE` writes them to a file: on a machine that does much else, a
test that waits for a state may wait in vain. `tests.steps` runs such tests again, alone: what hangs
then is a failure. A test that saw something wrong is never run again.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

LATE = "out of time"
"""A report's property."""


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--out-of-time",
        type=Path,
        metavar="FILE",
        help="where to write which tests failed by a timeout (tests/out_of_time.py)",
    )


def configure(config: pytest.Config) -> None:
    """In every process of pytest -n: each marks its reports, and the first one writes the file."""
    file = config.getoption("--out-of-time")
    if file is not None:
        config.pluginmanager.register(Watch(None if hasattr(config, "workerinput") else file))


def by_time(error: BaseException) -> bool:
    """Whether it says that something took too long: a TimeoutError, or what a library or
    pytest-timeout raises in its place. A group of errors does if all of them do."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(by_time, error.exceptions))
    if isinstance(error, pytest.fail.Exception):
        return str(error).startswith("Timeout (>")
    return any("Timeout" in kind.__name__ for kind in type(error).__mro__)


class Watch:
    """A run's failures."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._late: dict[str, None] = {}
        self._others: dict[str, None] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None and by_time(call.excinfo.value):
            report.user_properties.append((LATE, True))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            late = (LATE, True) in [tuple(each) for each in report.user_properties]
            (self._late if late else self._others)[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._others[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        if self._file is not None:
            late = [test for test in self._late if test not in self._others]
            self._file.write_text(json.dumps({"late": late, "others": [*self._others]}))


def read(file: Path) -> list[str]:
    """Returns the tests that ran out of time, if no test failed otherwise; else none."""
    try:
        said: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return []
    return [] if said["others"] else list(said["late"])
