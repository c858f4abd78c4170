"""GGUF files in parts, as the gguf package splits them: one model, or a clear refusal."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.formats.gguf_names import part_paths, stem_of
from penstock.formats.gguf_split import open_gguf
from penstock.prepare import load_manifest, prepare
from testing.tiny_models import write_gguf

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    first = write_gguf(tmp_path / "model.gguf", tensors_a_part=5)
    found = sorted(first.parent.glob("model-*.gguf"))
    assert len(found) == 3
    return found


def test_all_parts_are_one_file(tmp_path: Path, parts: list[Path]) -> None:
    whole = GGUFFile(write_gguf(tmp_path / "whole.gguf"))
    for given in parts:
        joined = open_gguf(given)
        assert list(joined.tensors) == list(whole.tensors)
        for name, tensor in joined.tensors.items():
            assert tensor.shape == whole.tensors[name].shape
            assert np.array_equal(tensor.data, whole.tensors[name].data)
            assert not tensor.data.flags.owndata
        added = {"split.no": 0, "split.count": 3, "split.tensors.count": len(whole.tensors)}
        assert joined.metadata == whole.metadata | added


def test_any_part_prepares_the_model(tmp_path: Path, parts: list[Path]) -> None:
    single = load_manifest(prepare(str(write_gguf(tmp_path / "whole.gguf")), cache_dir=tmp_path))
    for given in (parts[0], parts[2]):
        manifest = load_manifest(prepare(str(given), cache_dir=tmp_path / "cache"))
        assert manifest.name == "model"
        assert manifest.weights.files == tuple(map(str, parts))
        assert manifest.config == single.config


def test_copied_weights_are_all_parts(tmp_path: Path, parts: list[Path]) -> None:
    cache = tmp_path / "cache"
    folder = prepare(str(parts[1]), cache_dir=cache, copy_weights=True)
    files = [Path(file) for file in load_manifest(folder).weights.files]
    assert [file.name for file in files] == [part.name for part in parts]
    assert all(file.is_relative_to(cache) for file in files)


def test_a_changed_part_is_prepared_anew(tmp_path: Path, parts: list[Path]) -> None:
    before = prepare(str(parts[0]), cache_dir=tmp_path / "cache")
    again = prepare(str(parts[0]), cache_dir=tmp_path / "cache")
    parts[2].touch()
    assert before == again != prepare(str(parts[0]), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_missing_part_is_named(parts: list[Path], lost: int) -> None:
    parts[lost].unlink()
    left = parts[0] if lost else parts[1]
    with pytest.raises(ModelNotFound, match=parts[lost].name):
        open_gguf(left)
    with pytest.raises(ModelNotFound, match=parts[lost].name):
        prepare(str(left), cache_dir=left.parent / "cache")


def _retitled(part: Path, key: str, value: int) -> None:
    """Overwrites one small number of the metadata in place."""
    content = bytearray(part.read_bytes())
    at = content.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key)
    kind = gguf.GGUFValueType(struct.unpack_from("<I", content, at)[0])
    struct.pack_into({"UINT16": "<H", "INT32": "<i"}[kind.name], content, at + 4, value)
    part.write_bytes(content)


def _swapped(parts: list[Path]) -> None:
    spare = parts[1].with_suffix(".spare")
    parts[1].rename(spare)
    parts[2].rename(parts[1])
    spare.rename(parts[2])


BROKEN: dict[str, tuple[Callable[[list[Path]], object], str]] = {
    "a number that isn't its own": (
        lambda parts: _retitled(parts[1], "split.no", 2), "that it is part 3 .* makes it part 2"),
    "another count": (
        lambda parts: _retitled(parts[2], "split.count", 4), "one of 4 parts .* one of 3"),
    "another total": (
        lambda parts: _retitled(parts[0], "split.tensors.count", 99), "have 99 tensors together"),
    "parts in another order": (_swapped, "makes it part 2"),
    "a part of another model": (
        lambda parts: shutil.copy(parts[0], parts[1]), "that it is part 1 .* makes it part 2"),
    "a part cut short": (
        lambda parts: parts[2].write_bytes(parts[2].read_bytes()[:-64]), "cut short"),
    "an empty part": (lambda parts: parts[1].write_bytes(b""), "is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_parts_that_do_not_fit_together(parts: list[Path], case: str) -> None:
    damage, reason = BROKEN[case]
    damage(parts)
    with pytest.raises(UnsupportedModel, match=reason):
        open_gguf(parts[0])


def test_one_tensor_in_two_parts(parts: list[Path]) -> None:
    """Tensors of equal shapes and names of equal length: only one name changes."""
    names = [name.encode() for part in parts for name in GGUFFile(part).tensors]
    one, other = b"blk.0.attn_k.weight", b"blk.0.attn_v.weight"
    assert {one, other} <= set(names)
    for part in parts:
        part.write_bytes(part.read_bytes().replace(other, one))
    with pytest.raises(UnsupportedModel, match=r"attn_k\.weight"):
        open_gguf(parts[0])


def test_names_of_parts() -> None:
    assert stem_of(Path("a/Big-Q4_K_M-00002-of-00009.gguf")) == "Big-Q4_K_M"
    assert stem_of(Path("a/Big-Q4_K_M.gguf")) == "Big-Q4_K_M"
    assert part_paths(Path("x/plain.gguf")) == [Path("x/plain.gguf")]
    for name in ("m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-99999.gguf"):
        with pytest.raises(UnsupportedModel, match="parts are counted from 1"):
            part_paths(Path(name))


def test_a_renamed_whole_file_says_so(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "whole.gguf")
    path.rename(tmp_path / "whole-00001-of-00001.gguf")
    assert open_gguf(tmp_path / "whole-00001-of-00001.gguf").tensors
    for number in (1, 2):
        shutil.copy(
            tmp_path / "whole-00001-of-00001.gguf", tmp_path / f"whole-0000{number}-of-00002.gguf"
        )
    with pytest.raises(UnsupportedModel, match=r"one of 1 parts .* one of 2"):
        open_gguf(tmp_path / "whole-00001-of-00002.gguf")
