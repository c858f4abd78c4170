"""loadtest/peers/install.sh: the peers that it knows, and its list of what a wheel needs."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from loadtest.peers.wheel_requirements import requirements

INSTALL = Path(__file__).parents[2] / "loadtest/peers/install.sh"


def test_extras_and_what_is_named_are_left_out(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    lines = [
        "torch==2.13.0",
        "torchvision; platform_machine != 's390x'",
        "torchmetrics>=1",
        'numpy<3; python_version >= "3.11"',
        "uvicorn[standard]",
        'pandas; extra == "bench"',
    ]
    metadata = "Name: a\n" + "".join(f"Requires-Dist: {line}\n" for line in lines) + "\nText\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a-1.dist-info/METADATA", metadata)
    assert requirements(wheel, {"torch", "torchvision"}) == lines[2:5]


def test_what_is_no_wheel_is_said(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("readme", "")
    with pytest.raises(LookupError, match="no METADATA"):
        requirements(tmp_path / "x.whl", set())


def test_peers_that_the_head_names_are_known() -> None:
    head = INSTALL.read_text().split("set -euo")[0]
    named = set(re.findall(r"install\.sh (\w+)", head)) | set(re.findall(r"\[(\w+)\]", head))
    asked = subprocess.run(
        ["bash", str(INSTALL), "none_such"], capture_output=True, text=True, timeout=30, check=False
    )
    assert asked.returncode == 2
    assert named == set(asked.stderr.split("there are")[1].split())
