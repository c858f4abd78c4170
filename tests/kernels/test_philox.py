"""Philox-4x32-10 against the known answers that its authors publish with Random123."""

from __future__ import annotations

import pytest
import torch

from penstock_kernels import reference
from penstock_kernels.cpu.sampler import uniform as cpu_uniform

pytestmark = pytest.mark.timeout(240)

KNOWN_ANSWERS = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def test_known_answers() -> None:
    counters = torch.tensor([words(counter) for counter, _, _ in KNOWN_ANSWERS])
    keys = torch.tensor([words(key) for _, key, _ in KNOWN_ANSWERS])
    expected = [words(answer) for _, _, answer in KNOWN_ANSWERS]
    assert reference.philox_4x32_10(counters, keys).tolist() == expected
    alone = reference.philox_4x32_10(counters[2:], keys[2:]).tolist()
    assert alone == expected[2:]


def test_uniform_is_a_function_of_seed_sequence_and_token() -> None:
    seeds, sequences, tokens = [0, 2**64 - 1, 7, 7, 7], [0, 127, 1, 0, 0], [0, 2**40, 5, 5, 6]
    together = reference.uniform(seeds, sequences, tokens)
    assert len(set(together)) == 5
    for at, draw in enumerate(together):
        one = slice(at, at + 1)
        assert reference.uniform(seeds[one], sequences[one], tokens[one]) == [draw]
        assert 0.0 <= draw < 1.0


def test_the_cpu_kernels_draw_what_the_reference_draws() -> None:
    """All 53 bits, from each bit of the three numbers."""
    places = [(2**64 - 1, 2**32 - 1, 2**64 - 1), (0, 0, 0)]
    for bit in range(64):
        places += [(2**bit, 0, 0), (5, 2 ** (bit % 32), 7), (5, 3, 2**bit)]
    seeds, sequences, tokens = (list(part) for part in zip(*places, strict=True))
    drawn = cpu_uniform(seeds, sequences, tokens)
    assert drawn.tolist() == reference.uniform(seeds, sequences, tokens)
    assert len(set(drawn.tolist())) == len(set(places))


def test_uniform_is_uniform() -> None:
    """Chi-square over 64 cells, 63 degrees of freedom: 99.9% lie under 103.4."""
    count, cells = 64_000, 64
    draws = reference.uniform([11] * count, [0] * count, list(range(count)))
    seen = torch.bincount(torch.tensor(draws).mul(cells).long(), minlength=cells).double()
    expected = count / cells
    assert float(((seen - expected) ** 2 / expected).sum()) < 103.4
