"""Everything by compose, killed and restarted: only with --compose, on a machine with an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 3000
"""Seconds: the images may have to be built."""


@pytest.mark.timeout(LIMIT + 60)
def test_from_nothing_to_rolling_restarts(
    request: pytest.FixtureRequest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not request.config.getoption("--compose"):
        pytest.skip("takes minutes and a container engine: --compose")
    output = tmp_path / "compose.json"
    command = [sys.executable, "-m", "deploy.compose", "--check", "--output", str(output)]
    with capfd.disabled():
        done = subprocess.run(command, cwd=ROOT, timeout=LIMIT, check=False)
    assert done.returncode == 0
    found = json.loads(output.read_text(encoding="utf-8"))
    killed = {blow["victim"] for blow in found["findings"]["blows"]}
    assert killed == {"worker", "engine", "gateway", "haproxy", "engine-2"}
    assert found["findings"]["equal"] >= 64
    assert len(found["findings"]["restarts"]) == 2
    # All images have NumPy and what opens media; only a worker's has torch.
    for image, most in (("gateway", 220), ("engine", 180)):
        assert found["image_mb"][image] <= most
