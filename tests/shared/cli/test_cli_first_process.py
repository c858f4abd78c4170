"""`penstock` as a container's first process, which no signal ends by default."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import psutil
import pytest

UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]

SLOW = """
import os, sys, time
from penstock.cli import (commands, main)
class Slow:
    def parser(self):
        print(os.getpid(), flush=True)
        time.sleep(600)
main.BY_NAME["slow"] = Slow()
main.main(["slow"])
"""
"""A command that is still loading what it needs."""


@pytest.mark.timeout(240)
def test_it_can_be_told_to_leave_while_it_loads() -> None:
    if (
        shutil.which("unshare") is None
        or subprocess.run([*UNSHARE, "true"], check=False).returncode
    ):
        pytest.skip("this machine allows no process namespace of one's own")
    with subprocess.Popen(
        [*UNSHARE, sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True
    ) as unshare:
        assert unshare.stdout is not None
        assert unshare.stdout.readline() == "1\n"
        [first] = psutil.Process(unshare.pid).children()
        first.send_signal(signal.SIGTERM)
        try:
            assert unshare.wait(100) == 143
        finally:
            if unshare.poll() is None:
                first.kill()
