"""The bytes of a prepared item: they come back as they went, and nothing else is believed."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from penstock.media.prepared import BrokenItem, read, write

ARRAYS = {
    "pixels": np.arange(2 * 3 * 5, dtype=np.uint8).reshape(2, 3, 5),
    "positions": np.arange(-4, 3, dtype=np.int64),
    "weights": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "none": np.zeros((0, 4), np.int32),
    "one": np.array(7, np.int32),
}


def test_arrays_come_back_as_they_were() -> None:
    payload = write(ARRAYS)
    found = read(payload)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert np.array_equal(found[name], array)
        assert not found[name].flags.writeable
    assert write(found) == payload


def test_order_in_memory_doesnt_matter() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert write({"a": np.asfortranarray(array)}) == write({"a": array})
    assert write({"a": array.astype(">f4")}) == write({"a": array})


def test_any_place_in_memory_will_do() -> None:
    payload = write(ARRAYS)
    shifted = memoryview(b"x" + payload)[1:]
    assert np.array_equal(read(shifted)["weights"], ARRAYS["weights"])


@pytest.mark.parametrize(
    "arrays",
    [
        {"a": np.zeros(2, np.float64)},
        {"a": np.array(["text"])},
        {"": np.zeros(2, np.uint8)},
        {"n" * 65: np.zeros(2, np.uint8)},
        {str(i): np.zeros(1, np.uint8) for i in range(17)},
    ],
)
def test_what_cant_be_read_isnt_written(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(BrokenItem):
        write(arrays)


def framed(tensors: list[list[object]], data: bytes) -> bytes:
    header = msgspec.msgpack.encode({"tensors": tensors})
    head = len(header).to_bytes(4, "little") + header
    return head + bytes(-len(head) % 16) + data


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xff\xff\xff",
        b"\x04\0\0\0abcd",
        framed([["a", "float64", [1], 0]], bytes(8)),
        framed([["a", "object", [1], 0]], bytes(8)),
        framed([["a", "uint8", [8], 0]], bytes(7)),
        framed([["a", "uint8", [8], 0]], bytes(9)),
        framed([["a", "uint8", [-8], 0]], bytes(8)),
        framed([["a", "uint8", [1 << 40, 0], 0]], b""),
        framed([["a", "float32", [1 << 30, 1 << 30, 1 << 30], 0]], bytes(8)),
        framed([["a", "uint8", [8], 16]], bytes(24)),
        framed([["a", "uint8", [8], -16]], bytes(8)),
        framed([["a", "uint8", [8], 0], ["a", "uint8", [8], 16]], bytes(24)),
        framed([["a", "uint8", [8], 0], ["b", "uint8", [8], 0]], bytes(8)),
        framed([["a", "uint8", [1] * 9, 0]], bytes(1)),
    ],
)
def test_lies_are_refused(payload: bytes) -> None:
    with pytest.raises(BrokenItem):
        read(payload)


def test_damaged_bytes_never_do_more_than_raise() -> None:
    payload, chance = write(ARRAYS), random.Random(3)
    for _ in range(2000):
        damaged = bytearray(payload)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        del damaged[chance.randrange(len(damaged)) :][chance.randrange(2) * len(damaged) :]
        try:
            found = read(bytes(damaged))
        except BrokenItem:
            continue
        assert sum(array.nbytes for array in found.values()) <= len(payload)
