"""What travels to a GPU machine is named and weighed, the compiled CPU kernels with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loadtest.gpu import start, travels
from loadtest.gpu.machine import cpu_kernels
from loadtest.gpu.travels import LIBRARY, PACKED, luggage, pack_library, unpack_library


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    library = root / LIBRARY
    library.parent.mkdir(parents=True)
    library.write_bytes(bytes(5000))
    (root / ".gitignore").write_text("*.so\n/.whl/\n/.carried/\n")
    (root / "tracked.py").write_bytes(bytes(300))
    (root / "new.py").write_bytes(bytes(70))
    (root / ".whl").mkdir()
    (root / ".whl" / "a.whl").write_bytes(bytes(1000))
    for command in (["init", "-q"], ["add", ".gitignore", "tracked.py"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def test_all_that_travels_is_counted_and_named(checkout: Path) -> None:
    pack_library(checkout, checkout / ".carried")
    sizes = luggage(checkout, [checkout / ".whl", checkout / ".carried", None])
    packed = (checkout / ".carried" / PACKED).stat().st_size
    own = 300 + 70 + (checkout / ".gitignore").stat().st_size  # Not the library itself.
    assert sizes == {"": own, ".whl": 1000, ".carried": packed}
    assert "to be named as carried: .whl (1,000 bytes), .carried" in travels.said(sizes)


def test_the_library_arrives_as_it_was(checkout: Path, tmp_path: Path) -> None:
    (checkout / LIBRARY).write_bytes(bytes(range(256)) * 9)
    pack_library(checkout, checkout / ".carried")
    assert unpack_library(checkout / ".carried", tmp_path / "there.so")
    assert (tmp_path / "there.so").read_bytes() == bytes(range(256)) * 9
    assert not unpack_library(tmp_path, tmp_path / "other.so")
    assert not unpack_library(None, tmp_path / "other.so")


def test_a_rehearsal_fails_where_something_cannot_travel(
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheels, carried = checkout / ".whl", checkout / ".carried"
    monkeypatch.setattr(start, "ROOT", checkout)

    def said(*folders: Path | None) -> str:
        assert not start.can_travel(*folders)
        return capsys.readouterr().err

    assert start.can_travel(wheels, carried)
    assert f"{PACKED}" not in capsys.readouterr().err
    assert "name a folder by --carried" in said(wheels, None)
    assert "outside the checkout" in said(tmp_path / "whl", carried)
    assert "isn't there" in said(checkout / ".other", carried)
    monkeypatch.setattr(travels, "MOST_BYTES", 1300)
    assert "bytes would travel, of at most 1,300" in said(wheels, carried)
    (checkout / LIBRARY).unlink()
    assert "isn't built" in said(wheels, carried)


def test_a_visit_without_the_library_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the machine: it goes on, says so, and its report names it."""
    assert not start.bring_library(tmp_path, tmp_path / "there.so")
    assert "checksums are numpy's" in capsys.readouterr().err
    (tmp_path / PACKED).write_bytes(b"no archive")
    assert not start.bring_library(tmp_path, tmp_path / "there.so")
    assert "can't be read" in capsys.readouterr().err
    from penstock_kernels.cpu import library

    monkeypatch.setenv(library.OTHER_PATH, str(tmp_path / "none.so"))
    library.load.cache_clear()
    try:
        assert cpu_kernels().startswith("none (PENSTOCK_CPU_LIBRARY is ")
    finally:
        library.load.cache_clear()
