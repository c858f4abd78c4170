"""What a test leaves behind is told of, with the test's name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.left_behind import Ledger, children

WAITING = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
"""It lives until its input is closed."""

TESTS = f"""
import os, subprocess
import pytest

def start():
    return subprocess.Popen({WAITING!r}, stdin=subprocess.PIPE)

@pytest.fixture(scope="session")
def kept():
    process = start()
    yield process
    process.communicate()

@pytest.fixture(scope="module")
def shared():
    with start() as process:
        yield process
        process.stdin.close()

def test_tidy(kept, shared):
    with start() as process:
        process.stdin.close()

def test_careless(kept, shared):
    global forgotten
    forgotten = start()
"""


def begun() -> subprocess.Popen[bytes]:
    return subprocess.Popen(WAITING, stdin=subprocess.PIPE)


def test_what_lives_and_what_nobody_waited_for() -> None:
    with begun() as before:
        ledger = Ledger()
        with begun() as tidy:
            ledger.note("tidy")
            tidy.communicate()
        with begun() as alive, begun() as ended:
            ledger.note("careless")
            assert ended.stdin is not None
            ended.stdin.close()
            os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
            told = sorted(ledger.left(patience=0))
            assert len(told) == 2
            assert all(line.startswith("careless: ") for line in told)
            for process, words in (
                (alive, "is alive: "),
                (ended, "has ended, and nobody waited for it"),
            ):
                assert any(f"{process.pid} {words}" in line for line in told)
            ledger.note("the next")
            assert not ledger.left(patience=0)  # each once
            alive.communicate()
        before.communicate()


def test_what_is_to_stay_may() -> None:
    ledger = Ledger()
    with begun() as kept:
        ledger.keep(children())
        ledger.note("a test")
        assert not ledger.left(patience=0)
        kept.communicate()


@pytest.mark.parametrize("as_error", [False, True])
def test_a_run_names_the_test(tmp_path: Path, as_error: bool) -> None:
    file = tmp_path / "test_processes.py"
    file.write_text(TESTS)
    also = ["-W", "error::tests.left_behind.LeftBehind"] if as_error else []
    options = ["-q", "-p", "tests.left_behind", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    command = [sys.executable, "-m", "pytest", *options, *also, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [line for line in done.stdout.splitlines() if "is alive:" in line]
    assert done.returncode == (1 if as_error else 0), done.stdout + done.stderr
    assert told
    assert all("test_careless: " in line for line in told)
    assert "test_tidy" not in done.stdout
