"""`make shell`: where `penstock` is after `make serve`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_shell_has_the_environment_active_and_leaves_without_a_complaint(
    tmp_path: Path,
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("WHERE=inside\n")
    done = subprocess.run(
        ["make", "--old-file=setup", "shell"],
        cwd=tmp_path,
        input="echo I am $WHERE\nexit 3\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "I am inside" in done.stdout
    assert "Error" not in done.stderr
