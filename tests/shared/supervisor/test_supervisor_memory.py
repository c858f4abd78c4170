"""What the supervisor does where the machine has no room for a process."""

from __future__ import annotations

import argparse
import errno
from pathlib import Path

import pytest

from penstock.cli import processes
from penstock.cli.processes import run_child
from penstock.errors import StartupError
from penstock.process.memory import is_memory_shortage
from penstock.supervisor import child as child_module
from penstock.supervisor.child import Child, ChildSpec
from penstock.supervisor.restarts import OUT_OF_MEMORY, RestartPolicy, RestartSettings


async def test_a_machine_without_room_for_a_process_ends_a_start_and_not_a_running_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = 0

    async def start(*_: object) -> object:
        nonlocal started
        started += 1
        if started == 4:
            child.kill()
        raise StartupError("worker 0: can't start a process: Cannot allocate memory")

    monkeypatch.setattr(child_module, "start", start)
    ready = False
    policy = RestartPolicy(RestartSettings(first_delay=0.001))
    child = Child(
        ChildSpec("worker 0", ()),
        tmp_path / "failure",
        system_was_ready=lambda: ready,
        policy=policy,
    )
    assert await child.run() == "worker 0: can't start a process: Cannot allocate memory"
    ready = True
    assert await child.run() is None
    assert started == 4


@pytest.mark.parametrize(
    ("error", "shortage"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "mmap"), True),
        (OSError(errno.ENOENT, "no such file"), False),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), True),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_lack_of_memory_is_told_from_other_failures(error: Exception, shortage: bool) -> None:
    assert is_memory_shortage(error) is shortage


def test_a_process_without_memory_says_so_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(_: object) -> int:
        return len(bytearray(1 << 60))

    monkeypatch.setitem(processes._BODIES, "worker", body)
    monkeypatch.setattr(processes.logs, "setup", lambda *_, **__: None)
    monkeypatch.setattr(processes, "set_title", lambda _: None)
    file = tmp_path / "failure"
    arguments = argparse.Namespace(
        index=None, rank=0, supervised_by=None, failure_file=str(file), config=None
    )
    assert run_child("worker", arguments) == OUT_OF_MEMORY
    assert file.read_text().startswith("MemoryError")
