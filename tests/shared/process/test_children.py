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
from penstock.process.children import die_with_parent
die_with_parent(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(600)
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
        timeout=100,
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


LEAVING = """
import atexit, sys, threading, time
from penstock.cli.processes import leave

class Left:
    def __del__(self):
        print("taken apart")

left = Left()
atexit.register(print, "at exit")
main = threading.current_thread()
def last():
    while main.is_alive() and not joined.is_set():
        time.sleep(0.001)
    print("the other thread")
joined = threading.Event()
thread = threading.Thread(target=last)
join = thread.join
thread.join = lambda: (joined.set(), join())
thread.start()
print("begun")
leave(7)
"""


def test_a_process_that_leaves_says_all_that_it_has_to_say() -> None:
    """Its output is a pipe, and so not written line by line."""
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True)
    assert (done.stdout, done.returncode, done.stderr) == (
        "begun\nthe other thread\nat exit\n",
        7,
        "",
    )
