"""The systemd unit: systemd takes it, and its command line is one of ours."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import string
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import FOLDER
from penstock.cli.commands import BY_NAME
from penstock.config.flags import resolve
from testing.serving import Server, wait_until

UNIT = FOLDER / "systemd" / "penstock.service"
INSTALLED = "/opt/penstock/.venv/bin/penstock"


def values(name: str) -> list[str]:
    """The values of that name, in the unit's order."""
    lines = UNIT.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def environment() -> dict[str, str]:
    """What the unit sets."""
    pairs = [pair for line in values("Environment") for pair in shlex.split(line)]
    return dict(pair.split("=", 1) for pair in pairs)


def arguments() -> list[str]:
    """What `penstock` is started with, by systemd's rules for variables."""
    [command] = values("ExecStart")
    program, *words = string.Template(command).substitute(environment()).split()
    assert program == INSTALLED
    return words


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze (systemd)")
def test_systemd_takes_it(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(INSTALLED, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_its_command_serves_and_is_reloaded_and_stopped() -> None:
    command, *flags = arguments()
    assert command == "serve"
    assert values("ExecReload") == ["/bin/kill -USR2 $MAINPID"]
    with Server(*flags) as server:
        assert server.complete()
        os.kill(server.process.pid, signal.SIGUSR2)
        wait_until(lambda: "gateways restarted" in server.stderr)
        assert server.complete()
        assert server.stop(signal.SIGTERM) == 0


def test_what_is_stored_lies_where_the_unit_may_write() -> None:
    told = [line.lstrip("# ") for line in UNIT.read_text().splitlines() if "--data-dir" in line]
    [words] = (shlex.split(line) for line in told if line.startswith("--"))
    command, *flags = arguments()
    config = resolve(BY_NAME[command].parser().parse_args([*flags, *words]))
    [state] = values("StateDirectory")
    assert config.storage.data_dir == f"/var/lib/{state}"
    assert config.storage.stored_response_hours
    assert values("StateDirectoryMode") == ["0700"]


def test_it_is_not_started_again_after_wrong_usage() -> None:
    [status] = values("RestartPreventExitStatus")
    command = [sys.executable, "-m", "penstock", "serve", "--no-such-flag"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == int(status)
