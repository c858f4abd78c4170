"""Signals that reach a worker while it starts or fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

INTERRUPTED = """
import os, signal, sys
from penstock_worker import process

class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)

def wrapped():
    class Owner:
        field = Field()

def swallowed():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        pass

def loading():
    def run(self):
        with self._faults(0, "Setup"):
            wrapped()
    process.Worker.run = run

process.preload = {"wrapped": wrapped, "swallowed": swallowed, "loading": loading}[sys.argv[2]]
process.main(sys.argv[1], 0)
"""


@pytest.mark.parametrize("way", ["wrapped", "swallowed", "loading"])
def test_a_signal_amid_an_import_is_an_orderly_end(tmp_path: Path, way: str) -> None:
    """Whatever the interrupted code makes of the exception."""
    endpoint = f"ipc://{tmp_path}/nobody"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, endpoint, way],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


FAILED = """
import os, signal, sys, weakref
from penstock_worker import process

class Broken(process.Worker):
    def run(self):
        raise SystemExit("unfit")

    def close(self):
        if sys.argv[2] == "given up":
            os.kill(os.getpid(), signal.SIGTERM)
        super().close()
        print("closed")

class Kept:
    pass

kept = Kept()
if sys.argv[2] == "finalised":
    weakref.finalize(kept, os.kill, os.getpid(), signal.SIGTERM)
process.preload = lambda: None
process.Worker = Broken
process.main(sys.argv[1], 0)
"""


@pytest.mark.parametrize("when", ["given up", "finalised"])
def test_a_signal_while_a_failed_worker_ends_adds_nothing(tmp_path: Path, when: str) -> None:
    """The supervisor stops what is left as soon as one worker says that it is unfit."""
    done = subprocess.run(
        [sys.executable, "-c", FAILED, f"ipc://{tmp_path}/nobody", when],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == "closed\n"
    assert done.returncode == 1
    assert "unfit" in done.stderr
    assert "Traceback" not in done.stderr
