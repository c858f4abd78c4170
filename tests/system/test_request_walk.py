"""How many calls a plain chat request makes and how many modules it walks through, by
`python -m tests.house --walks`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

TURN = "decode turn of the engine core"
MOST = {"gateway": 55, "engine core": 76, "worker": 50, TURN: 50}
"""Modules of which a function is entered, at most. The gateway's were 46 before what it prepares
became data that another process can make (ReadyParams, ParsingSpec, PreparedRequest, an estimate of
cost), and before it held numbers of schemas exactly and knew its own names."""

MOST_CALLS = {"gateway": 330, TURN: 235}
"""Calls at most. The gateway's, from the body to the Submit on the socket, depend on how much of
the renderer's answer there is at once; a decode turn's (286 while it asked every part) on what the
sockets bring."""


@pytest.mark.timeout(240)
def test_a_request_makes_few_calls_in_few_modules() -> None:
    command = [sys.executable, "-m", "tests.house", "--walks"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout
    counts = re.findall(r"(\d+)  (modules|calls) in the (.+)", told)
    calls = {part: int(count) for count, what, part in counts if what == "calls"}
    assert all(0 < calls[part] <= most for part, most in MOST_CALLS.items()), calls
    found = {part: int(count) for count, what, part in counts if what == "modules"}
    assert found.keys() == MOST.keys()
    assert all(0 < found[part] <= most for part, most in MOST.items()), found
