"""How many calls a plain chat request makes and how many modules it walks through, by
`python -m tests.house --walks`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

TURN = "quietest decode turn"
GATEWAY = "gateway"
MOST = {
    GATEWAY: 68,
    "gateway, from the ASGI call": 68,
    "gateway's answer": 40,
    "engine core": 78,
    "worker": 50,
    "decode turn of the engine core": 52,
    TURN: 50,
}
"""Modules of which a function is entered, at most. The gateway's were 46 before what it prepares
became data that another process can make (ReadyParams, ParsingSpec, PreparedRequest, an estimate of
cost), and before it held numbers of schemas exactly and knew its own names; 60 before files of two
subjects were divided. Where the body comes after the ASGI call, the walk from there is the whole
one: both have one bound."""

MOST_CALLS = {GATEWAY: 345, TURN: 235}
"""Calls at most. The gateway's, from the request's first bytes to the Submit on the socket, depend
on how much of the renderer's answer there is at once; a decode turn's (286 while it asked every
part) on what the sockets bring."""


@pytest.mark.timeout(240)
def test_a_request_over_http_makes_few_calls_in_few_modules() -> None:
    command = [sys.executable, "-m", "tests.house", "--walks", "--verbose"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout
    counts = re.findall(r"(?m)^ *([\d,]+)  (modules|calls) in the (.+)$", told)
    found = {(what, part): int(count.replace(",", "")) for count, what, part in counts}
    assert {part for _, part in found} == MOST.keys()
    modules = {part: found["modules", part] for part in MOST}
    calls = {part: found["calls", part] for part in MOST}
    assert all(0 < modules[part] <= most for part, most in MOST.items()), modules
    assert all(0 < calls[part] <= most for part, most in MOST_CALLS.items()), calls
    assert calls[GATEWAY] > calls["gateway, from the ASGI call"]
    of_gateway = told.partition("in the gateway, from the ASGI call")[0]
    assert "  BoundedHttp.data_received\n" in of_gateway, "the walk begins at the HTTP server"
