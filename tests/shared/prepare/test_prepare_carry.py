"""Weights brought into the cache folder, and the link to the prepared folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import StartupError
from penstock.prepare import load_manifest, prepare
from penstock.prepare.carry import link_to
from testing.tiny_models import add_byte_level_vocabulary, write_gguf, write_hub_folder

pytestmark = pytest.mark.timeout(240)


def _gguf(path: Path) -> Path:
    write_gguf(path, vocabulary=add_byte_level_vocabulary)
    return path


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_the_cache_is_whole_without_the_original(tmp_path: Path, kind: str) -> None:
    origin = tmp_path / "elsewhere"
    origin.mkdir()
    model = write_hub_folder(origin / "model") if kind == "folder" else _gguf(origin / "model.gguf")
    cache = tmp_path / "cache"
    folder = prepare(str(model), cache_dir=cache, copy_weights=True)
    files = [Path(file) for file in load_manifest(folder).weights.files]
    assert all(file.is_relative_to(cache) for file in files)
    wanted = prepare(str(model), cache_dir=tmp_path / "other")
    assert load_manifest(folder).digest == load_manifest(wanted).digest
    shutil.rmtree(origin)
    assert all(file.stat().st_size > 0 for file in files)


def test_the_same_model_is_copied_once(tmp_path: Path) -> None:
    model = write_hub_folder(tmp_path / "model")
    cache, said = tmp_path / "cache", []
    first = prepare(str(model), cache_dir=cache, copy_weights=True, progress=said.append)
    # An image that is built again holds the same files with other times.
    os.utime(model / "model.safetensors", ns=(1, 1))
    second = prepare(str(model), cache_dir=cache, copy_weights=True, progress=said.append)
    assert second == first
    assert len(said) == 2
    assert said[0].startswith("copying model")
    assert len(list((cache / "weights").glob("model-*"))) == 1


def test_other_files_are_another_copy(tmp_path: Path) -> None:
    model = write_hub_folder(tmp_path / "model")
    cache = tmp_path / "cache"
    first = prepare(str(model), cache_dir=cache, copy_weights=True)
    with open(model / "config.json", "a", encoding="utf-8") as file:
        file.write("\n")
    assert prepare(str(model), cache_dir=cache, copy_weights=True) != first
    assert load_manifest(first).weights.files, "what is in use stays"


def test_what_is_inside_already_is_not_copied(tmp_path: Path) -> None:
    model = write_hub_folder(tmp_path / "cache" / "mine" / "model")
    folder = prepare(str(model), cache_dir=tmp_path / "cache", copy_weights=True)
    assert Path(load_manifest(folder).weights.files[0]).parent == model
    assert not (tmp_path / "cache" / "weights").exists()


def test_a_part_of_a_copy_is_made_whole(tmp_path: Path) -> None:
    model = write_hub_folder(tmp_path / "model")
    cache = tmp_path / "cache"
    folder = prepare(str(model), cache_dir=cache, copy_weights=True)
    weights = Path(load_manifest(folder).weights.files[0])
    os.truncate(weights, 10)
    prepare(str(model), cache_dir=cache, copy_weights=True)
    assert weights.read_bytes() == (model / "model.safetensors").read_bytes()


def test_the_link_changes_in_one_step(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "models" / name).mkdir(parents=True)
    link = tmp_path / "current"
    for name in ("one", "two", "two"):
        link_to(link, tmp_path / "models" / name)
        assert os.readlink(link) == f"models/{name}", "relative: the folder may be mounted anywhere"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "models"]


def test_a_link_takes_no_other_files_place(tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    with pytest.raises(StartupError, match="no symbolic link"):
        link_to(tmp_path / "current", tmp_path)
    with pytest.raises(StartupError, match="can't be made"):
        link_to(tmp_path / "nowhere" / "current", tmp_path)


def test_the_command_prepares_and_links(tmp_path: Path) -> None:
    model = write_hub_folder(tmp_path / "model")
    flags = ["--cache-dir", str(tmp_path / "c"), "--copy-weights", "--link", str(tmp_path / "now")]
    command = [sys.executable, "-m", "penstock", "prepare", str(model), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (tmp_path / "now").resolve() == Path(done.stdout.strip())
    assert load_manifest(tmp_path / "now").name == "model"
