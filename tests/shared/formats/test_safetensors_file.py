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
from penstock.prepare.checkpoint_size import check_shards

pytestmark = pytest.mark.timeout(240)


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


# Folders with more files of weights than one model has.


@pytest.mark.parametrize(
    ("files", "index", "read"),
    [
        (["model", "model-00001-of-00001"], ["model-00001-of-00001"], ["model"]),
        (["model", "model-mtp"], ["model", "model-mtp"], ["model-mtp", "model"]),
        (["model", "consolidated"], [], ["model"]),
        (["consolidated", "part-00001-of-00001"], [], ["part-00001-of-00001"]),
        (["consolidated.00", "x"], [], ["x"]),
        (["consolidated-00001-of-00001", "x"], [], ["x"]),
        (["consolidated_merge"], [], ["consolidated_merge"]),
        (["a-00001-of-00002", "a-00002-of-00002"], [], ["a-00001-of-00002", "a-00002-of-00002"]),
    ],
)
def test_which_files_are_the_model(
    tmp_path: Path, files: list[str], index: list[str], read: list[str]
) -> None:
    """transformers too takes the single file where there are shards that don't contain it."""
    for file in files:
        save_file({f"t{file}": np.zeros(1)}, tmp_path / f"{file}.safetensors")
    if index:
        _index(tmp_path, [f"{shard}.safetensors" for shard in index])
    assert [path.name for path in find_safetensors(tmp_path)] == [f"{x}.safetensors" for x in read]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["a-00001-of-00003", "a-00003-of-00003"], "holds 2 .safetensors files but no"),
        (["a-00001-of-00002", "b-00002-of-00002"], "holds 2 .safetensors files but no"),
        (["one", "other"], "holds 2 .safetensors files but no"),
        (["a-00001-of-00002"], "holds a-00001-of-00002.safetensors alone but no"),
        (["consolidated"], "has Mistral's own names"),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, files: list[str], said: str) -> None:
    for file in files:
        save_file({"x": np.zeros(1)}, tmp_path / f"{file}.safetensors")
    with pytest.raises(UnsupportedModel, match=said):
        find_safetensors(tmp_path)


def test_what_an_index_may_leave_out_or_have_wrong(tmp_path: Path) -> None:
    """Its total size is nobody's. Shards may hold what it doesn't list (NVIDIA/Model-Optimizer pull
    request 2427), lack what it does (huggingface/huggingface_hub issue 4725, of a released Qwen),
    have it elsewhere, and the same twice."""
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_file({"a": np.ones(3), "tied": np.arange(4.0)}, tmp_path / shards[0])
    save_file({"unlisted": np.ones(2), "tied": np.arange(4.0)}, tmp_path / shards[1])
    places = {"a": shards[1], "tied": shards[1], "lm_head.weight": shards[0]}
    index = {"metadata": {"total_size": "1e99"}, "weight_map": places}
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    held = check_shards(tmp_path, find_safetensors(tmp_path))
    assert held.count == 3


def test_two_values_of_one_tensor_are_refused(tmp_path: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for number, shard in enumerate(shards):
        save_file({"x": np.full(3, number), str(number): np.ones(1)}, tmp_path / shard)
    index = {"x": shards[1], "0": shards[0]}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": index}))
    with pytest.raises(UnsupportedModel, match=r"the tensor x is in two files.*different values"):
        check_shards(tmp_path, find_safetensors(tmp_path))
