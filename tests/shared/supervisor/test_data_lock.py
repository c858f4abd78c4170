"""The lock on a data folder: who has it, who inherits it, when it is free again."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import StartupError
from penstock.supervisor import data_lock
from penstock.supervisor.data_lock import DataLock
from testing.processes import freeze
from testing.serving import PATIENCE
from tests.said import said

HOLDING = """
import asyncio, subprocess, sys
from penstock.supervisor.data_lock import DataLock
lock = asyncio.run(DataLock.take(sys.argv[1]))
child = subprocess.Popen(["sleep", "600"], pass_fds=lock.inherited)
other = subprocess.Popen(["sleep", "600"])
print(child.pid, other.pid, flush=True)
child.wait()
"""
"""A supervisor with a child that writes to the folder, and one that doesn't."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_lock, "PATIENCE", 0.05)


async def test_a_folder_has_one_system(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    lock = await DataLock.take(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    named = re.escape(f"{folder} is in use by another server")
    who = re.escape(f"(pid {os.getpid()} on {socket.gethostname()})")
    with pytest.raises(StartupError, match=f"^--data-dir: {named} {who}; .* folder of its own$"):
        await DataLock.take(str(folder))
    lock.release()
    lock.release()
    (await DataLock.take(str(folder))).release()
    assert (await DataLock.take(None)).inherited == ()


async def test_it_lasts_as_long_as_a_child_that_inherited_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        writer, other = map(int, supervisor.stdout.readline().split())
        try:
            with pytest.raises(StartupError, match=rf"pid {supervisor.pid} on \S+\);"):
                await DataLock.take(str(tmp_path))
            supervisor.kill()
            supervisor.wait()
            freeze(writer)
            ended = rf"pid {supervisor.pid} on \S+, which has ended, but not all of its processes\)"
            with pytest.raises(StartupError, match=ended):
                await DataLock.take(str(tmp_path))
            os.kill(writer, signal.SIGKILL)
            monkeypatch.setattr(data_lock, "PATIENCE", PATIENCE)
            (await DataLock.take(str(tmp_path))).release()
        finally:
            for pid in (writer, other):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("note", [b"", b"x", b"12 \xff\xff extra", b"9" * 10_000, b"-1 here"])
async def test_a_note_that_says_nothing_is_no_trouble(tmp_path: Path, note: bytes) -> None:
    """A full disk leaves such notes."""
    lock = await DataLock.take(str(tmp_path))
    (tmp_path / data_lock.NAME).write_bytes(note)
    with pytest.raises(StartupError, match="in use by another server; allowed"):
        await DataLock.take(str(tmp_path))
    lock.release()


async def test_a_file_system_without_locks_serves_with_one_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    before = set(os.listdir("/proc/self/fd"))
    lock = await DataLock.take(str(tmp_path))
    assert lock.inherited == ()
    assert set(os.listdir("/proc/self/fd")) == before
    lock.release()
    (line,) = said(caplog).splitlines()
    assert "can't be locked" in line
    assert f"folder={tmp_path} reason=No locks available" in line
