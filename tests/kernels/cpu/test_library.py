"""The library is the one of the sources beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_kernels.cpu import library
from penstock_kernels.cpu.sources import digest


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources, taken for the library's."""
    copy = tmp_path / "csrc"
    shutil.copytree(library.SOURCES, copy)
    monkeypatch.setattr(library, "SOURCES", copy)
    return copy


def test_of_the_same_sources(others: Path) -> None:
    assert library.load.__wrapped__() is not None


def test_of_other_sources(others: Path) -> None:
    with (others / "types.h").open("a") as file:
        file.write("// Another field.\n")
    with pytest.raises(ImportError, match=r"built of other sources .* install Penstock again"):
        library.load.__wrapped__()


def test_an_installed_wheel_has_no_sources(others: Path) -> None:
    shutil.rmtree(others)
    assert library.load.__wrapped__() is not None


def test_names_and_contents_count(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("one")
    (tmp_path / "notes.txt").write_text("nothing")
    first = digest(tmp_path)
    (tmp_path / "notes.txt").write_text("something")
    assert digest(tmp_path) == first
    (tmp_path / "a.h").rename(tmp_path / "b.h")
    second = digest(tmp_path)
    (tmp_path / "b.h").write_text("two")
    assert len({first, second, digest(tmp_path)}) == 3


def test_units_slower_than_those_for_floats_are_not_the_default() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    if "avx512_bf16" not in text:
        pytest.skip("this processor has no units for bfloat16")
    environment = {name: value for name, value in os.environ.items() if name != library.CHOICE}
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from penstock_kernels.cpu import library; print(library.instruction_set())",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    expected = "avx512vnni" if "GenuineIntel" in text else "avx512"
    assert found.stdout.strip() == expected
