"""The checksum of a KV block's contents: alike in both implementations, and of everything in it."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest

from penstock_kernels.cpu import kept
from penstock_kernels.reference.checksum import CHECKSUM_BYTES, checksum

KEY = bytes(range(32))
SIZES = [0, 1, 3, 4, 1023, 1024, 1025, 5_000, 65_536]


def contents(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def slowly(key: bytes, payload: bytes) -> bytes:
    """Straight from the definition, with whole numbers alone."""
    state, numbers = 0, []
    for _ in range(260):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        numbers.append((z ^ z >> 31) >> 32)
    padded = payload + bytes(-len(payload) % 1024)
    words = [int.from_bytes(padded[at : at + 4], "little") for at in range(0, len(padded), 4)]
    found = b""
    for lane, point in enumerate((0x0F3A5C6E9B1D2847, 0x1B6D93A7C4E8501F)):
        terms = [int.from_bytes(key[at : at + 8], "little") for at in range(0, len(key), 8)]
        terms.append(len(payload))
        for stripe in range(0, len(words), 256):
            total = 0
            for word in range(0, 256, 2):
                first = (words[stripe + word] + numbers[word + 4 * lane]) % 2**32
                second = (words[stripe + word + 1] + numbers[word + 1 + 4 * lane]) % 2**32
                total += first * second
            terms.append(total % 2**64)
        value = 0
        for term in terms:
            for half in (term % 2**32, term >> 32):
                value = (value + half) * point % (2**61 - 1)
        found += value.to_bytes(8, "little")
    return found


@pytest.mark.parametrize("size", SIZES)
def test_both_implementations_compute_what_is_defined(size: int) -> None:
    payload = contents(size)
    expected = slowly(KEY, payload)
    assert len(expected) == CHECKSUM_BYTES
    assert checksum(KEY, payload) == expected
    assert kept.checksum(KEY, payload) == expected
    assert kept.checksum(KEY, memoryview(bytearray(payload))) == expected
    for extreme in (bytes(size), b"\xff" * size):
        assert kept.checksum(b"\xff" * 32, extreme) == slowly(b"\xff" * 32, extreme)


@pytest.mark.parametrize("made", [checksum, kept.checksum])
def test_every_bit_and_every_place_counts(made) -> None:  # type: ignore[no-untyped-def]
    payload = bytearray(contents(3_000))
    plain = made(KEY, bytes(payload))
    met = {plain}
    for at in range(0, len(payload), 37):
        for bit in (1, 16, 128):
            payload[at] ^= bit
            met.add(made(KEY, bytes(payload)))
            payload[at] ^= bit
    assert len(met) == 1 + 3 * len(range(0, len(payload), 37))
    swapped = bytes(payload[1024:2048] + payload[:1024] + payload[2048:])
    moved = bytes(payload[8:16] + payload[:8] + payload[16:])
    zeros = bytes(payload) + bytes(5)
    others = {made(KEY, each) for each in (swapped, moved, zeros, bytes(3_000))}
    assert len(others | {plain}) == 5
    for at in range(32):
        key = bytearray(KEY)
        key[at] ^= 4
        assert made(bytes(key), bytes(payload)) != plain


@pytest.mark.parametrize("idle", [False, True])
def test_what_is_kept_lies_in_the_file(idle: bool) -> None:
    payload = contents(70_001)
    with tempfile.TemporaryFile() as file:
        kept.keep(file.fileno(), 4_099, KEY, b"header", payload, idle=idle)
        file.seek(4_099)
        assert file.read() == b"header" + checksum(KEY, payload) + payload


def test_a_file_that_takes_nothing_is_told() -> None:
    with open(os.devnull, "rb") as file, pytest.raises(OSError, match="could not be written"):
        kept.keep(file.fileno(), 0, KEY, b"header", b"payload", idle=True)


def test_rows_are_gathered_behind_one_another() -> None:
    parts = [np.frombuffer(contents(6 * width, width), np.uint8) for width in (3, 64, 1000)]
    parts = [part.reshape(6, -1) for part in parts]
    gatherer, target = kept.BlockGatherer(parts), np.zeros(1067, np.uint8)
    for row in (5, 0, 3):
        gatherer.gather(row, target)
        assert target.tobytes() == b"".join(part[row].tobytes() for part in parts)
    for row, wanted in ((6, target), (-1, target), (0, target[1:])):
        with pytest.raises(ValueError, match="into"):
            gatherer.gather(row, wanted)
    with pytest.raises(ValueError, match="one behind another"):
        kept.BlockGatherer([parts[1][:, ::2]])
