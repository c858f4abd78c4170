"""Weights of 4 bits from the bytes that hold two of them.

A nibble n in the low bits of the number 128 (bfloat16) or 1024 (float16) makes 128 + n or 1024 + n,
since such a number's last bit counts 1. Subtracting 128 + zero or 1024 + zero leaves n - zero. All
of these are whole and small enough to be exact, so the level is the one that float32 would give,
by 11 instructions for 8 weights.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.rounding import INTERPRETED, round_to


def _unpacking(upper: int, one: int, kind: str) -> str:
    """PTX: four bytes in $4 and the negative offsets of their levels, two to a register, in $5 and
    $6, to their low nibbles' levels in $0 and $1 and their high ones' in $2 and $3.

    upper: the upper byte of a number that a nibble is put into.  one: the number 1, twice.
    """
    places = "".join(
        f"prmt.b32 part, {half}, {upper:#x}, {chosen:#x};\n"
        f"fma.rn.{kind}x2 ${2 * (half == 'high') + place}, part, once, ${5 + place};\n"
        for half in ("low", "high")
        for place, chosen in enumerate((0x4140, 0x4342))
    )
    return (
        "{\n.reg .b32 low, high, part, once;\n"
        f"mov.b32 once, {one:#x};\n"
        "and.b32 low, $4, 0x0f0f0f0f;\n"
        "shr.u32 high, $4, 4;\n"
        "and.b32 high, high, 0x0f0f0f0f;\n"
        f"{places}}}"
    )


TO_BFLOAT16 = tl.constexpr(_unpacking(0x43, 0x3F803F80, "bf16"))
TO_FLOAT16 = tl.constexpr(_unpacking(0x64, 0x3C003C00, "f16"))
_REGISTERS = tl.constexpr("=r,=r,=r,=r,r,r,r")


@triton.jit
def nibble_levels(raw, zero, dtype: tl.constexpr):
    """Returns the levels minus their zeros of the low and of the high nibbles, as tiles of `dtype`
    in the shape of `raw`.

    `raw`: [columns, bytes] uint8.  `zero`: [columns] float32, whole numbers in [-112, 128].
    """
    if INTERPRETED or dtype == tl.float32:
        low = round_to((raw & 15).to(tl.float32) - zero[:, None], dtype)
        high = round_to((raw >> 4).to(tl.float32) - zero[:, None], dtype)
    elif dtype == tl.bfloat16:
        low, high = tl.inline_asm_elementwise(
            TO_BFLOAT16,
            _REGISTERS,
            [raw, _offsets(raw, zero, 128.0, tl.bfloat16)],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        low, high = tl.inline_asm_elementwise(
            TO_FLOAT16,
            _REGISTERS,
            [raw, _offsets(raw, zero, 1024.0, tl.float16)],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )
    return low, high


@triton.jit
def _offsets(raw, zero, base: tl.constexpr, dtype: tl.constexpr):
    return tl.broadcast_to((-base - zero).to(dtype)[:, None], raw.shape)
