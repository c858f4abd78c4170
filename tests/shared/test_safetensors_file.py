"""The safetensors reader against the safetensors package, and against broken files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.formats.safetensors_file import SafetensorsFile
from penstock.formats.weight_files import INDEX_FILE, find_safetensors, refuse_pickle

pytestmark = pytest.mark.timeout(300)


def _assert_same_as_safetensors_package(path: Path) -> None:
    ours = SafetensorsFile(path)
    with safe_open(path, "numpy") as theirs:
        assert set(ours.tensors) == set(theirs.keys())
        for name in theirs.keys():  # noqa: SIM118
            expected = theirs.get_tensor(name)
            mine = ours.tensors[name]
            assert mine.shape == expected.shape
            assert mine.dtype == theirs.get_slice(name).get_dtype()
            assert bytes(mine.data) == expected.tobytes()
            assert not mine.data.flags.writeable


def test_tensors_as_the_safetensors_package_reads_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tensors = {
        "b.weight": rng.standard_normal((3, 5), dtype=np.float32),
        "a.half": rng.standard_normal((2, 2, 2)).astype(np.float16),
        "empty": np.zeros((0, 4), np.int64),
        "scalar": np.array(7, np.uint8),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    _assert_same_as_safetensors_package(path)
    assert SafetensorsFile(path).metadata == {"format": "pt"}


def test_installed_model_as_the_safetensors_package_reads_it(minilm_folder: Path) -> None:
    _assert_same_as_safetensors_package(minilm_folder / "model.safetensors")


def _file(header: object, data: bytes = bytes(16), length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def _entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BROKEN = {
    "empty": (b"", "shorter than 8"),
    "long header": (_file({}, length=2**63), "header claims"),
    "no JSON": (_file(b"{nope"), "header is not valid"),
    "a list": (_file([1]), "header is not valid"),
    "deep JSON": (_file(b'{"a":' + b"[" * 100_000 + b"}"), "header is not valid"),
    "no offsets": (_file({"a": {"dtype": "F32", "shape": [4]}}), "header is not valid"),
    "unknown dtype": (_file({"a": _entry(0, 16, [4], "F31")}), "unknown dtype"),
    "negative shape": (_file({"a": _entry(0, 16, [-4])}), "shape"),
    "wrong length": (_file({"a": _entry(0, 16, [5])}), "takes 16 bytes"),
    "past the end": (_file({"a": _entry(0, 32, [8])}), "cut short"),
    "huge": (_file({"a": _entry(0, 2**63, [2**61])}), "cut short"),
    "gap": (_file({"a": _entry(8, 16, [2])}), "begins at 0"),
    "overlap": (_file({"a": _entry(0, 16, [4]), "b": _entry(8, 16, [2])}), "begins at 16"),
    "rest": (_file({"a": _entry(0, 8, [2])}), "belong to no tensor"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_refused(tmp_path: Path, case: str) -> None:
    content, reason = BROKEN[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        SafetensorsFile(path)
    assert "model.safetensors" in str(raised.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.safetensors"):
        SafetensorsFile(tmp_path / "none.safetensors")


def test_single_file_is_found(minilm_folder: Path) -> None:
    assert find_safetensors(minilm_folder) == (minilm_folder / "model.safetensors",)


def _index(folder: Path, shards: list[str]) -> None:
    weight_map = {f"t{i}": shard for i, shard in enumerate(shards)}
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_are_found_by_the_index(tmp_path: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for shard in [*shards, "stray.safetensors"]:
        save_file({"x": np.zeros(1)}, tmp_path / shard)
    _index(tmp_path, [shards[1], shards[0], shards[1]])
    assert find_safetensors(tmp_path) == tuple(tmp_path / shard for shard in shards)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/x.safetensors", "x.bin", ""])
def test_index_may_only_name_safetensors_beside_it(tmp_path: Path, shard: str) -> None:
    _index(tmp_path, [shard])
    with pytest.raises(UnsupportedModel, match="beside it"):
        find_safetensors(tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    _index(tmp_path, ["model-00001-of-00001.safetensors"])
    with pytest.raises(ModelNotFound, match="model-00001-of-00001"):
        find_safetensors(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "a.PTH", "last.ckpt"])
def test_pickled_weights_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    for refuse in (lambda: refuse_pickle(tmp_path / name), lambda: find_safetensors(tmp_path)):
        with pytest.raises(UnsupportedModel, match=r"pickled.*convert them to \.safetensors"):
            refuse()


def test_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="holds no weights"):
        find_safetensors(tmp_path)
