"""A CPU installation has no triton, and serves all that needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = """
import importlib.abc
import sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
ASKED = """
from penstock import LLM, SamplingParams

if __name__ == "__main__":
    for backend in ("auto", "reference"):
        with LLM(%r, max_model_len=64, num_kv_blocks=16, attention_backend=backend) as llm:
            [output] = llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=4))
            print(len(output.outputs[0].token_ids))
"""


@pytest.mark.timeout(240)
def test_a_model_generates(tiny_model: str, tmp_path: Path) -> None:
    """In the worker's process too: every Python that starts with this path hides triton."""
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    (tmp_path / "ask.py").write_text(ASKED % tiny_model)
    path = os.pathsep.join([str(tmp_path), *(each for each in sys.path if each)])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "ask.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == ["4", "4"]
