"""What Penstock's other packages bring to a gateway can be imported in any order."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.config.bundled import BUNDLED

PLACES = sorted({place.partition(":")[0] for places in BUNDLED.values() for place in places})
FIRST = """
import importlib, os, sys
import fastapi, msgspec  # What all of them import.

failed = []
for place in sys.argv[1:]:
    if not (pid := os.fork()):
        try:
            importlib.import_module(place)
        except BaseException as error:
            print(place, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    failed += [place] * (os.waitpid(pid, 0)[1] != 0)
sys.exit(bool(failed))
"""


@pytest.mark.timeout(300)
def test_each_may_be_imported_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST, *PLACES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
