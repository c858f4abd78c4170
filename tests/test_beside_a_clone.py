"""Where a script may lie that uses the library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_script_beside_the_clone_finds_the_library(tmp_path: Path) -> None:
    """Its folder comes first among Python's paths, and the clone in it is called as the package
    is."""
    (tmp_path / "penstock").mkdir()
    script = tmp_path / "script.py"
    script.write_text("from penstock import LLM, SamplingParams\nprint(SamplingParams.__name__)\n")
    ran = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout == "SamplingParams\n", ran.stderr
