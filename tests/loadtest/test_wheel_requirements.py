"""install.sh's list of what a wheel needs."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from loadtest.peers.wheel_requirements import requirements


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
