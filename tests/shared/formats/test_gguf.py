"""The GGUF reader against the gguf package's, and against broken files."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.formats.gguf_types import TENSOR_TYPES
from testing.quick_gguf import QuickReader
from tests.met import met
from tests.thinning import part

pytestmark = pytest.mark.timeout(240)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _small_file(
    *,
    version: int = 3,
    metadata: tuple[bytes, ...] = (),
    dimensions: tuple[int, ...] = (32, 2),
    type_code: int = 0,
    offset: int = 0,
    data: bytes = bytes(range(256)),
    tensors: int = 1,
    name: str = "t",
) -> bytes:
    description = _string(name) + struct.pack("<I", len(dimensions))
    description += struct.pack(f"<{len(dimensions)}Q", *dimensions)
    description += struct.pack("<IQ", type_code, offset)
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, len(metadata))
    head += b"".join(metadata) + description * tensors
    return head + bytes(-len(head) % 32) + data


def _write(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file made by the gguf package, with every kind of value and several tensor types."""
    path = tmp_path_factory.mktemp("gguf") / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("x.u8", 200)
    writer.add_int8("x.i8", -3)
    writer.add_uint16("x.u16", 60_000)
    writer.add_int16("x.i16", -300)
    writer.add_int32("x.i32", -70_000)
    writer.add_uint64("x.u64", 2**60)
    writer.add_int64("x.i64", -(2**60))
    writer.add_float32("x.f32", 0.5)
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.bool", True)
    writer.add_string("x.str", "naïve ☃ 𝄞")
    writer.add_array("x.strings", ["", "a", "é", "▁the"])
    writer.add_array("x.floats", [1.5, -2.5])
    writer.add_array("x.flags", [True, False, True])
    rng = np.random.default_rng(0)
    writer.add_tensor("f32", rng.standard_normal((3, 64), dtype=np.float32))
    writer.add_tensor("f16", rng.standard_normal((2, 5, 7)).astype(np.float16))
    for kind in ("Q4_0", "Q8_0", "Q4_1"):
        quantised = gguf.quantize(
            rng.standard_normal((4, 64), dtype=np.float32), gguf.GGMLQuantizationType[kind]
        )
        writer.add_tensor(kind, quantised, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _assert_same_as_gguf_package(path: Path) -> None:
    ours, theirs = GGUFFile(path), QuickReader(path)
    expected = {
        key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")
    }
    assert ours.metadata == expected
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.type == tensor.tensor_type.name
        assert mine.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert mine.data.dtype == np.uint8
        assert not mine.data.flags.owndata
        assert np.array_equal(mine.data, np.asarray(tensor.data).reshape(-1).view(np.uint8))


def test_every_value_and_tensor_as_the_gguf_package_reads_it(written: Path) -> None:
    _assert_same_as_gguf_package(written)


def test_without_a_vocabulary_all_else_is_read(written: Path) -> None:
    whole, rest = GGUFFile(written), GGUFFile(written, vocabulary=False)
    assert rest.metadata == {**whole.metadata, "x.strings": []}
    assert list(rest.tensors) == list(whole.tensors)
    for name, tensor in whole.tensors.items():
        assert np.array_equal(rest.tensors[name].data, tensor.data)


@pytest.mark.slow
def test_default_model_as_the_gguf_package_reads_it(smollm2_gguf: Path) -> None:
    _assert_same_as_gguf_package(smollm2_gguf)


def test_tensor_types_as_the_gguf_package_has_them() -> None:
    newer = {42: ("Q2_0", 64, 18)}
    for code, (name, block, size) in TENSOR_TYPES.items():
        if code in newer:
            assert newer[code] == (name, block, size)
            continue
        kind = gguf.GGMLQuantizationType(code)
        assert (name, (block, size)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])


def test_vocabulary_is_read_fast(smollm2_gguf: Path) -> None:
    """Four times what it takes to encode and decode the tokens; the bound leaves room."""
    fastest = usual = float("inf")
    for _ in range(3):
        begin = time.thread_time()
        file = GGUFFile(smollm2_gguf)
        fastest = min(fastest, time.thread_time() - begin)
        tokens = file.metadata["tokenizer.ggml.tokens"]
        assert len(tokens) == 49_152
        begin = time.thread_time()
        assert [raw.decode() for raw in [token.encode() for token in tokens]] == tokens
        usual = min(usual, time.thread_time() - begin)
    assert fastest < 40 * usual


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    file = GGUFFile(_write(tmp_path, _small_file(version=2)))
    assert file.tensors["t"].shape == (2, 32)
    assert bytes(file.tensors["t"].data) == bytes(range(256))


def test_tensor_data_outlives_the_file_object(tmp_path: Path) -> None:
    data = GGUFFile(_write(tmp_path, _small_file())).tensors["t"].data
    assert int(data[255]) == 255
    assert not data.flags.writeable


def _two_tensors(first: int, second: int) -> bytes:
    """`a` and `b`, 256 bytes each, at these offsets of 512 bytes of data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0)
    for name, offset in (("a", first), ("b", second)):
        head += _string(name) + struct.pack("<IQQIQ", 2, 32, 2, 0, offset)
    return head + bytes(-len(head) % 32) + bytes(512)


KEY = _string("k")
HUGE = 2**63
BROKEN = {
    "empty": (b"", "empty"),
    "another format": (b"PK\x03\x04" + bytes(64), "begin with"),
    "version 1": (_small_file(version=1), "version is 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "many pairs": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE) + bytes(64), "claims"),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0) + bytes(64), "claims"),
    "long key": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + bytes(64), "claims"),
    "unknown value": (_small_file(metadata=(KEY + struct.pack("<II", 77, 0),)), "value type 77"),
    "long array": (_small_file(metadata=(KEY + struct.pack("<IIQ", 9, 4, HUGE),)), "claims"),
    "many strings": (_small_file(metadata=(KEY + struct.pack("<IIQ", 9, 8, HUGE),)), "claims"),
    "long string in array": (
        _small_file(metadata=(KEY + struct.pack("<IIQQ", 9, 8, 1, HUGE),)), "cut short"),
    "deep array": (
        _small_file(metadata=(KEY + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40,)),
        "deeper"),
    "not UTF-8": (
        _small_file(metadata=(KEY + struct.pack("<IQ", 8, 1) + b"\xff",)), "UTF-8"),
    "not UTF-8 in array": (
        _small_file(metadata=(KEY + struct.pack("<IIQQ", 9, 8, 1, 1) + b"\xff",)), "UTF-8"),
    "key twice": (_small_file(metadata=(KEY + struct.pack("<IB", 0, 1),) * 2), "twice"),
    "tensor twice": (_small_file(tensors=2), "twice"),
    "no dimensions": (_small_file(dimensions=()), "0 dimensions"),
    "five dimensions": (_small_file(dimensions=(1,) * 5), "5 dimensions"),
    "empty dimension": (_small_file(dimensions=(32, 0)), "positive multiple"),
    "half a block": (_small_file(dimensions=(48, 2), type_code=2), "multiple of 32"),
    "withdrawn type": (_small_file(type_code=4), "unknown type 4"),
    "large tensor": (_small_file(dimensions=(2**40, 2**40)), "the file at"),
    "far tensor": (_small_file(offset=2**60), "the file at"),
    "unaligned tensor": (_small_file(offset=8), "not aligned"),
    "short data": (_small_file(data=bytes(255)), "cut short"),
    "overlapping tensors": (_two_tensors(0, 224), "the tensors 'a' and 'b' overlap"),
    "one tensor inside another": (_two_tensors(32, 0), "the tensors 'b' and 'a' overlap"),
    "too many pairs": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 70_000) + bytes(13 * 70_000), "at most 65536"),
    "too many tensors": (
        b"GGUF" + struct.pack("<IQQ", 3, 70_000, 0) + bytes(32 * 70_000), "at most 65536"),
    "too many numbers": (
        _small_file(metadata=(
            KEY + struct.pack("<IIQ", 9, 0, (1 << 22) + 1) + bytes((1 << 22) + 1),)),
        "at most 4194304 are allowed"),
    "too many numbers together": (
        _small_file(metadata=tuple(
            _string(key) + struct.pack("<IIQ", 9, 0, 3 << 20) + bytes(3 << 20) for key in "ab")),
        "arrays up to 'b' have 6291456 elements"),
    "alignment of 0": (
        _small_file(metadata=(_string("general.alignment") + struct.pack("<II", 4, 0),)),
        "power of two"),
    "alignment is text": (
        _small_file(metadata=(_string("general.alignment") + struct.pack("<I", 8) + _string("x"),)),
        "power of two"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_refused(tmp_path: Path, case: str) -> None:
    content, reason = BROKEN[case]
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        GGUFFile(_write(tmp_path, content))
    assert "model.gguf" in str(raised.value)


def test_a_header_of_any_length_is_not_read(tmp_path: Path) -> None:
    """A file of 4 GiB that holds next to nothing, but says that it begins with a long text."""
    for metadata in (
        KEY + struct.pack("<IQ", 8, 3 << 30),
        KEY + struct.pack("<IIQQ", 9, 8, 2, 3 << 30),
        KEY + struct.pack("<IIQ", 9, 12, 400 << 20),
    ):
        path = _write(tmp_path, _small_file(metadata=(metadata,)))
        with open(path, "r+b") as file:
            file.truncate(4 << 30)
        tracemalloc.start()
        try:
            with pytest.raises(UnsupportedModel, match="header is longer than 268435456 bytes"):
                GGUFFile(path)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
            path.unlink()


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        GGUFFile(tmp_path / "none.gguf")
    with pytest.raises(UnsupportedModel):
        GGUFFile(tmp_path)


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(data=st.data())
def test_damage_never_gives_another_error(
    tmp_path_factory: pytest.TempPathFactory, written: Path, data: st.DataObject
) -> None:
    """Cut or overwritten anywhere in its header, a file reads or is refused: nothing else."""
    content = bytearray(written.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(4, 1600))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        content[position : position + len(patch)] = patch
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path = _write(tmp_path_factory.getbasetemp(), bytes(content))
    try:
        file = GGUFFile(path)
    except UnsupportedModel:
        met("damage that is refused", True)
        return
    met("damage that is refused", False)
    assert all(tensor.data.nbytes > 0 for tensor in file.tensors.values())
