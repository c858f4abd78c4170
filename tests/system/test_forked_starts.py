"""Processes that tests fork instead of executing them are what they would have been."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from testing import preloaded
from testing.serving import wait_until

PENSTOCK = [sys.executable, "-m", "penstock"]


def test_a_system_is_a_tree_of_processes_of_their_own(start_server, tiny_model):
    server = start_server("--model", tiny_model)
    supervisor = psutil.Process(server.process.pid)
    processes = server.processes()
    assert set(processes) == {"worker 0", "engine", "gateway 0", "fork-server"}
    assert supervisor.ppid() == os.getpid()
    for pid in processes.values():
        assert psutil.Process(pid).ppid() == supervisor.pid
        assert os.getpgid(pid) == pid
        assert not any("preloaded" in word for word in psutil.Process(pid).cmdline())


def test_one_that_is_killed_is_seen_and_started_again(start_server, tiny_model):
    server = start_server("--model", tiny_model)
    said = server.complete()
    pid = server.child("worker 0")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.children().get("penstock: worker 0") not in (None, pid))
    wait_until(server.ready)
    assert server.complete() == said
    assert "killed by SIGKILL" in server.stderr


def test_its_children_leave_with_a_supervisor_that_is_killed(start_server, tiny_model):
    server = start_server("--model", tiny_model)
    processes = [psutil.Process(pid) for pid in server.processes().values()]
    server.process.kill()
    assert server.process.wait(60) == -signal.SIGKILL
    gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    wait_until(lambda: not any(p.is_running() and p.status() not in gone for p in processes))
    for left in server.runtime_base.iterdir():
        shutil.rmtree(left)  # The next start of a system would.


def test_output_exit_status_and_folder_are_those_of_the_program(tmp_path: Path):
    asked = {"capture_output": True, "text": True, "cwd": tmp_path}
    forked = subprocess.run([*PENSTOCK, "--no-such-thing"], **asked)
    with preloaded.executed():
        executed = subprocess.run([*PENSTOCK, "--no-such-thing"], **asked)
    assert forked.returncode == 2
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        executed.returncode,
        executed.stdout,
        executed.stderr,
    )


def test_what_a_fork_does_not_have_is_executed(tmp_path: Path):
    """A variable that is read while modules are imported, for one."""
    (tmp_path / "sitecustomize.py").write_text("print('executed')")
    asked = {"capture_output": True, "text": True}
    forked = subprocess.run([*PENSTOCK, "--version"], **asked)
    other = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    executed = subprocess.run([*PENSTOCK, "--version"], env=other, **asked)
    assert "executed" not in forked.stdout
    assert executed.stdout == f"executed\n{forked.stdout}"


def test_a_fork_whose_parent_died_meanwhile_leaves():
    with subprocess.Popen(["true"]) as gone:
        pass
    program = (
        "import os; from testing.forked import Wanted, become; "
        f"become(Wanted(['python', '-c', ''], {{}}, '/', [], -1, False, {gone.pid}), (), int)"
    )
    with preloaded.executed():
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "ProcessLookupError" in done.stderr
