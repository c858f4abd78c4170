"""Triton's compiler takes what a worker launches, in a large model's shapes, for Hopper."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_workers_launches_compile_for_hopper(tmp_path: Path) -> None:
    environment = dict(os.environ, TRITON_CACHE_DIR=str(tmp_path))
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.cuda.simulated.worker_for_hopper", "plain"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = re.findall(r"^  (\w+): \d+ registers", done.stdout, re.MULTILINE)
    # In a prefill, in chunks of few tokens, in decodes of any context length, and no fourth time.
    assert kernels.count("attend") == 3
    assert kernels.count("combine") == 2
    assert {"_sample", "_adjust", "_log_probs", "_copy", "_rope_write"} <= set(kernels)
