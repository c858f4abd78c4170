"""A few of PTX's instructions in NumPy, for inline assembly that no interpreter runs: what the text
of a kernel's assembly computes, by the manual's definitions."""

from __future__ import annotations

import re

import numpy as np
import torch

Registers = dict[str, np.ndarray]
BITWISE = {"and.b32": np.bitwise_and, "or.b32": np.bitwise_or, "shr.u32": np.right_shift}
WIDTH = {"bf16": torch.bfloat16, "f16": torch.float16}


def run(text: str, inputs: dict[str, np.ndarray]) -> Registers:
    """Returns all registers after the instructions of `text`. inputs: uint32 arrays of one size by
    register. Raises ValueError for an instruction that isn't known here."""
    registers: Registers = dict(inputs)
    shape = next(iter(inputs.values())).shape
    for line in text.strip()[1:-1].split(";"):
        words = line.strip()
        if not words or words.startswith(".reg"):
            continue
        name, _, rest = words.partition(" ")
        if halved := re.fullmatch(r"\{(\w+), (\w+)\}, (\S+)", rest):
            low, high, whole = halved.groups()
            registers[low], registers[high] = registers[whole] & 0xFFFF, registers[whole] >> 16
            continue
        target, *sources = (each.strip() for each in rest.split(","))
        values = [
            registers[each] if each in registers else np.full(shape, int(each, 0), dtype=np.uint32)
            for each in sources
        ]
        registers[target] = _instruction(name, values)
    return registers


def _instruction(name: str, of: list[np.ndarray]) -> np.ndarray:
    if name == "mov.b32":
        return of[0]
    if name in BITWISE:
        made: np.ndarray = BITWISE[name](*of)
        return made
    if name == "shf.l.wrap.b32":  # The upper half of two registers, shifted to the left.
        turn = of[2].astype(np.uint64) & np.uint64(31)
        both = of[1].astype(np.uint64) << np.uint64(32) | of[0].astype(np.uint64)
        turned: np.ndarray = ((both << turn) >> np.uint64(32)).astype(np.uint32)
        return turned
    if name == "prmt.b32":
        return _permuted(*of)
    if found := re.fullmatch(r"fma\.rn\.(bf16|f16)x2", name):
        return _fused(WIDTH[found[1]], *of)
    if name == "cvt.rn.f16x2.e4m3x2":
        pair = torch.from_numpy(of[0].astype("<u2").view(np.uint8).reshape(*of[0].shape, 2))
        return packed(pair.view(torch.float8_e4m3fn).to(torch.float16))
    if name == "cvt.f32.f16":
        single: np.ndarray = halves(of[0], torch.float16)[..., 0].float().numpy().view("<u4")
        return single
    if name == "cvt.rn.bf16x2.f32":
        # The first source becomes the upper half.
        both_floats = np.stack([each.view("<f4") for each in reversed(of)], -1)
        return packed(torch.from_numpy(both_floats).to(torch.bfloat16))
    raise ValueError(f"{name} is no known instruction")


def _permuted(low: np.ndarray, high: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Four bytes out of eight: each nibble of `chosen` names one, `low` has the first four."""
    bytes_ = [(each >> (8 * n)) & 0xFF for each in (low, high) for n in range(4)]
    made = np.zeros_like(low)
    for n in range(4):
        place = (chosen >> (4 * n)) & 0xF
        if (place > 7).any():
            raise ValueError("a byte's sign is asked for, which isn't known here")
        made |= np.choose(place, bytes_).astype(np.uint32) << (8 * n)
    return made


def _fused(
    dtype: torch.dtype, left: np.ndarray, right: np.ndarray, added: np.ndarray
) -> np.ndarray:
    """Two numbers to a register, rounded once."""
    a, b, c = (halves(each, dtype).double() for each in (left, right, added))
    return packed((a * b + c).to(dtype))


def halves(registers: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Returns [..., 2] numbers of 16 bits: what the registers hold, the low half first."""
    words = np.ascontiguousarray(registers, dtype="<u4").view("<i2")
    return torch.from_numpy(words.reshape(*registers.shape, 2)).view(dtype)


def packed(numbers: torch.Tensor) -> np.ndarray:
    """The registers that hold [..., 2] numbers of 16 bits."""
    words = numbers.contiguous().view(torch.int16).numpy()
    return words.reshape(*words.shape[:-1], 2).view("<u4")[..., 0].copy()
