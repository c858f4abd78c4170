"""penstock replay as a shell sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.record.test_recording import recorded_walk

PENSTOCK = [sys.executable, "-m", "penstock"]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def test_replay_says_that_all_is_alike(tmp_path: Path) -> None:
    recorded_walk(tmp_path, 3, 200)
    done = run("replay", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all decisions are equal" in done.stdout


def test_replay_shows_the_first_difference(tmp_path: Path) -> None:
    recorded_walk(tmp_path, 3, 200)
    program = (
        "import sys; from penstock_engine.scheduler.starts import Headroom; "
        "Headroom.blocks = lambda *_: 10**6; "
        "from penstock.cli.main import main; sys.exit(main(['replay', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "to_workers" in done.stdout
    assert "recorded:\nplan" in done.stdout
    assert "replayed:\nplan" in done.stdout


@pytest.mark.parametrize("content", [b"no recording", b""])
def test_replay_of_something_else_is_a_usage_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    done = run("replay", path)
    assert done.returncode == 2
    assert "is not a recording" in done.stderr
    assert run("replay", tmp_path / "missing").returncode == 2
    assert "no recording found" in run("replay", tmp_path).stderr
