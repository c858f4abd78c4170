"""Levels of 4 bits: the assembly that a GPU runs gives what the interpreter's arithmetic gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton

from penstock_kernels.triton.linear import nibbles
from tests.kernels.triton import ptx
from tests.kernels.triton.nibble_kernels import unpack

BYTES = 256
ZEROS = torch.arange(-112, 129).float()
"""All whole numbers that a zero may be; AWQ's and GPTQ's are from 0 to 16."""


def every_byte() -> torch.Tensor:
    return torch.arange(BYTES, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_levels_are_the_nibbles_less_their_zero(dtype: torch.dtype, device: torch.device) -> None:
    """On a GPU the assembly, elsewhere what stands in its place."""
    for zeros in (*ZEROS.split(64)[:3], torch.full((16,), 8.0)):
        count = triton.next_power_of_2(len(zeros))
        zeros = torch.nn.functional.pad(zeros, (0, count - len(zeros)))
        raw = every_byte().repeat(count, 1).to(device)
        made = [torch.empty(count, BYTES, dtype=dtype, device=device) for _ in range(2)]
        unpack[(1,)](raw, zeros.to(device), *made, COUNT=count, WIDTH=BYTES)
        for ours, nibble in zip(made, (every_byte() & 15, every_byte() >> 4), strict=True):
            assert torch.equal(ours.cpu().double(), nibble.double() - zeros[:, None].double())


@pytest.mark.parametrize(
    ("assembly", "base", "dtype"),
    [
        (nibbles.TO_BFLOAT16.value, 128.0, torch.bfloat16),
        (nibbles.TO_FLOAT16.value, 1024.0, torch.float16),
    ],
)
def test_the_assembly_gives_the_same_levels(assembly: str, base: float, dtype: torch.dtype) -> None:
    """For every byte in each of a register's four places, and every zero."""
    for turn in range(4):
        held = every_byte().reshape(-1, 4).roll(turn, 1).contiguous()
        word = np.repeat(held.numpy().view("<u4"), len(ZEROS), 1)
        offset = ptx.packed((-base - ZEROS).to(dtype)[:, None].expand(-1, 2))
        assert torch.equal(ptx.halves(offset, dtype)[:, 0].double(), -base - ZEROS.double())
        offset = np.tile(offset, (len(word), 1))
        after = ptx.run(assembly, {"$4": word, "$5": offset, "$6": offset})
        for first, nibble in ((0, held & 15), (2, held >> 4)):
            pairs = [ptx.halves(after[f"${first + place}"], dtype) for place in range(2)]
            ours = torch.cat(pairs, -1).double()
            assert torch.equal(ours, nibble[:, None].double() - ZEROS[None, :, None].double())


def test_the_assembly_finds_the_upper_bits() -> None:
    check_planes(nibbles.FIVE_TO_BFLOAT16.value, 1)
    check_planes(nibbles.SIX_TO_BFLOAT16.value, 2)


def check_planes(assembly: str, planes: int) -> None:
    """Levels of 32 inputs, drawn and all alike, in registers of any four of the 16 bytes; a GPU's
    rotation of the second plane is the kernel's own."""
    drawn = np.random.default_rng(1)
    levels = drawn.integers(0, 16 << planes, (2000, 32), dtype=np.uint32)
    levels[0], levels[1] = 0, (16 << planes) - 1
    raw = levels[:, :16] & 15 | (levels[:, 16:] & 15) << 4
    of_planes = [
        np.bitwise_or.reduce((levels >> (4 + plane) & 1) << np.arange(32, dtype=np.uint32), 1)
        for plane in range(planes)
    ]
    of_planes[1:] = [each << 1 | each >> 31 for each in of_planes[1:]]
    zero = 16 << (planes - 1)
    offset = ptx.packed(torch.full((len(levels), 2), -128.0 - zero).bfloat16())
    for chosen in ((0, 1, 2, 3), (12, 13, 14, 15), (5, 4, 11, 0)):
        registers = {"$5": offset, "$6": offset}
        registers["$4"] = np.bitwise_or.reduce(
            [raw[:, at] << np.uint32(8 * n) for n, at in enumerate(chosen)], 0
        )
        for n, at in enumerate(chosen):
            registers[f"${7 + n}"] = np.full(len(levels), (36 - at) & 31, dtype=np.uint32)
            for plane, bits in enumerate(of_planes):
                registers[f"${11 + 4 * plane + n}"] = bits
        after = ptx.run(assembly, registers)
        for first, half in ((0, 0), (2, 16)):
            pairs = [ptx.halves(after[f"${first + place}"], torch.bfloat16) for place in range(2)]
            wanted = levels[:, [half + at for at in chosen]].astype(np.float64) - zero
            assert np.array_equal(torch.cat(pairs, -1).double().numpy(), wanted)
