"""What the tests of clients wait for."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.steps import CLIENTS, INSTALLING
from tests.system.clients.installed import ROOT


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """`make test` installs the clients beside other tests: a second `make clients` waits for the
    first, and says what it says if it failed."""
    if INSTALLING in os.environ:
        subprocess.run(CLIENTS, cwd=ROOT, timeout=580, check=True)
