"""How many modules a plain chat request walks through, by `python -m tests.house --walks`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

MOST = {"gateway": 55, "engine core": 76, "worker": 50}
"""Modules of which a function is entered, at most. The gateway's were 46 before what it prepares
became data that another process can make (ReadyParams, ParsingSpec, PreparedRequest, an estimate of
cost), and before it held numbers of schemas exactly and knew its own names."""


@pytest.mark.timeout(240)
def test_a_request_walks_through_few_modules() -> None:
    command = [sys.executable, "-m", "tests.house", "--walks"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout
    found = {part: int(count) for count, part in re.findall(r"(\d+)  modules in the (.+)", told)}
    assert found.keys() == MOST.keys()
    assert all(0 < found[part] <= most for part, most in MOST.items()), found
