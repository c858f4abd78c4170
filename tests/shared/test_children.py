"""A child that asked to die with its parent does, by the kernel's hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import os, sys, time
from penstock.children import die_with_parent
die_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], str(os.getpid())])
"""


def test_a_child_dies_with_a_killed_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child)


def test_a_child_whose_parent_died_first_does_not_outlive_it() -> None:
    someone_else = os.getpid() + 1
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(someone_else)],
        stdout=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout == b""


def alive(pid: int) -> bool:
    """Whether the process runs; an unreaped one doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
