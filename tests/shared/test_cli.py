"""The penstock command as a shell sees it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock

PENSTOCK = [sys.executable, "-m", "penstock"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_version_is_the_distributions() -> None:
    assert run("--version").stdout == f"penstock {penstock.__version__}\n"
    assert importlib.metadata.version("penstock") == penstock.__version__


def test_help_is_quick_and_names_every_command() -> None:
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        done = run("--help")
        best = min(best, time.perf_counter() - begun)
    for command in ("serve", "gateway", "engine", "worker", "prepare", "config-table"):
        assert f"    {command}" in done.stdout
    assert best < 0.3


def test_the_installed_command_is_the_module() -> None:
    script = Path(sys.executable).with_name("penstock")
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == run("--version").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "COMMAND"),
        (("fly",), "invalid choice: 'fly'"),
        (("serve", "--port", "99999"), "--port: '99999' is not allowed; expected a whole number"),
        (("serve", "--max-num", "3"), "--max-num"),
        (("serve", "a", "--model", "b"), "two models were named, 'a' and --model 'b'"),
        (("serve", "--config", "/no/such/file"), "/no/such/file: No such file"),
        (("serve", "--report-fd", "99"), "--report-fd 99"),
        (("engine",), "--model-dir"),
        (("prepare", ""), "MODEL is empty"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_usage_error_reaches_the_report_pipe() -> None:
    reading, writing = os.pipe()
    done = subprocess.run(
        [*PENSTOCK, "serve", "a", "--model", "b", "--report-fd", str(writing)],
        pass_fds=[writing],
        capture_output=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    with os.fdopen(reading) as report:
        assert "two models were named" in report.read()
    assert done.returncode == 2
