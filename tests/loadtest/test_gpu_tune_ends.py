"""However the tuning command ends, no process of it stays, and no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.gpu.tune import ahead
from loadtest.gpu.tune.table import all_candidates

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("supervise", "ahead", "sweep")


class Tuning:
    """The command, with its folder in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        command = [sys.executable, "-m", "loadtest.gpu.tune", str(folder / "out")]
        packages = [ROOT / each for each in ("shared", "services", "kernels", ".")]
        path = os.pathsep.join(map(str, packages))
        self.process = subprocess.Popen(
            [*command, "--kernels", "rms-norm", "--seconds", "60"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(self.temporary)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A signal that is ignored, as nohup has it, stays so.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def started(self) -> dict[str, list[int]]:
        """Of each module, the processes that name the folder."""
        found: dict[str, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(str(self.folder) in word for word in words):
                for module in MODULES:
                    if f"loadtest.gpu.tune.{module}" in words:
                        found.setdefault(module, []).append(int(path.parent.name))
        return found


@pytest.fixture
def tuning(tmp_path: Path) -> Iterator[Tuning]:
    """All of its processes have been started."""
    made = Tuning(tmp_path)
    try:
        wait_until(lambda: made.started().keys() == set(MODULES))
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        for pids in made.started().values():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def gone(tuning: Tuning) -> bool:
    return not tuning.started() and not any(tuning.temporary.iterdir())


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_every_process(tuning: Tuning, signum: signal.Signals) -> None:
    tuning.process.send_signal(signum)
    assert tuning.process.wait(60) == 128 + signum
    # What was just being started ends by itself.
    wait_until(lambda: gone(tuning))


def test_a_command_that_is_killed_leaves_nothing(tuning: Tuning) -> None:
    tuning.process.kill()
    wait_until(lambda: gone(tuning))


def test_a_supervisor_that_is_killed_leaves_nothing(tuning: Tuning) -> None:
    os.kill(tuning.started()["supervise"][0], signal.SIGKILL)
    tuning.process.wait(60)
    wait_until(lambda: gone(tuning))


def test_a_second_signal_does_not_cut_the_end_short() -> None:
    source = """
import os, signal, time
from loadtest.gpu.leaving import leave_at_signals
leave_at_signals()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
finally:
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(os.getpid(), signum)
    print("to the end")
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (143, "to the end\n")


def test_nothing_is_compiled_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "Compiler", lambda arch: None)
    candidates = all_candidates(["rms-norm"], dry=False)
    ahead.compile_all(candidates, tmp_path, 90, time.monotonic())
    assert list(tmp_path.iterdir()) == []
