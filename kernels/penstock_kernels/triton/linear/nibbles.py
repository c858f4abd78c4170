"""Weights of 4 bits from the bytes that hold two of them, and of 5 and 6 bits, whose upper bits are
elsewhere.

A nibble n in the low bits of the number 128 (bfloat16) or 1024 (float16) makes 128 + n or 1024 + n,
since such a number's last bit counts 1. Subtracting 128 + zero or 1024 + zero leaves n - zero. All
of these are whole and small enough to be exact, so the level is the one that float32 would give,
by 11 instructions for 8 weights. Upper bits are rotated to their place in a byte, and the bytes of
four weights put together, before a number is made of each.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.rounding import INTERPRETED, round_to


def _numbers(upper: int, kind: str, offsets: int) -> str:
    """PTX: of the bytes in `low` and `high`, less than 64, numbers minus their zeros in $0 to $3.

    upper: the upper byte of a number that a level is put into.  offsets: the first of two registers
    with negative offsets, two in each.
    """
    return "".join(
        f"prmt.b32 part, {half}, {upper:#x}, {chosen:#x};\n"
        f"fma.rn.{kind}x2 ${2 * (half == 'high') + place}, part, once, ${offsets + place};\n"
        for half in ("low", "high")
        for place, chosen in enumerate((0x4140, 0x4342))
    )


_NIBBLES = (
    "{{\n.reg .b32 low, high, part, once;\n"
    "mov.b32 once, {one:#x};\n"
    "and.b32 low, $4, 0x0f0f0f0f;\n"
    "shr.u32 high, $4, 4;\n"
    "and.b32 high, high, 0x0f0f0f0f;\n"
)


def _unpacking(upper: int, one: int, kind: str) -> str:
    """PTX: four bytes in $4 and the negative offsets of their levels, two to a register, in $5 and
    $6, to their low nibbles' levels in $0 and $1 and their high ones' in $2 and $3.

    upper: the upper byte of a number that a nibble is put into.  one: the number 1, twice.
    """
    return f"{_NIBBLES.format(one=one)}{_numbers(upper, kind, 5)}}}"


def _unpacking_planes(upper: int, one: int, kind: str, planes: int) -> str:
    """PTX as of _unpacking, with offsets in $5 and $6, how far to rotate for each byte in $7 to
    $10, and for each byte the bits of a plane: $11 to $14 those that become bit 4, and for two
    planes $15 to $18 those that become bit 5 by the same rotation. The bit of a byte's high nibble
    lies 16 further than that of its low one, so it comes two bytes further."""
    lines = [_NIBBLES.format(one=one), ".reg .b32 b0, b1, b2, b3, both;\n"]
    for plane in range(planes):
        lines += [
            f"shf.l.wrap.b32 b{n}, ${11 + 4 * plane + n}, ${11 + 4 * plane + n}, ${7 + n};\n"
            for n in range(4)
        ]
        lines += ["prmt.b32 b0, b0, b1, 0x6240;\n", "prmt.b32 b2, b2, b3, 0x6240;\n"]
        for half, chosen in (("low", 0x5410), ("high", 0x7632)):
            lines += [
                f"prmt.b32 both, b0, b2, {chosen:#x};\n",
                f"and.b32 both, both, {0x10101010 << plane:#x};\n",
                f"or.b32 {half}, {half}, both;\n",
            ]
    return f"{''.join(lines)}{_numbers(upper, kind, 5)}}}"


TO_BFLOAT16 = tl.constexpr(_unpacking(0x43, 0x3F803F80, "bf16"))
TO_FLOAT16 = tl.constexpr(_unpacking(0x64, 0x3C003C00, "f16"))
FIVE_TO_BFLOAT16 = tl.constexpr(_unpacking_planes(0x43, 0x3F803F80, "bf16", 1))
SIX_TO_BFLOAT16 = tl.constexpr(_unpacking_planes(0x43, 0x3F803F80, "bf16", 2))
_FIVE_REGISTERS = tl.constexpr("=r,=r,=r,=r,r,r,r" + ",r" * 8)
_SIX_REGISTERS = tl.constexpr("=r,=r,=r,=r,r,r,r" + ",r" * 12)
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


@triton.jit
def plane_levels(raw, first, second, zero, PLANES: tl.constexpr):
    """Returns what nibble_levels does, as bfloat16, of levels whose upper bits lie in planes.

    `raw`: [columns, 16] uint8.  `first`, `second`: [columns] int32, the bits 4 and 5 of 32 levels,
    those of the low nibbles first; bits 5 rotated left by one; without `second` if PLANES is 1.
    `zero`: [columns] float32, whole numbers in [0, 64].
    """
    at = tl.broadcast_to(tl.arange(0, 16)[None, :], raw.shape)
    turn = (36 - at) & 31
    offset = _offsets(raw, zero, 128.0, tl.bfloat16)
    bits = tl.broadcast_to(first[:, None], raw.shape)
    if INTERPRETED:
        low, high = _plane_levels(raw, offset, turn, first, second, PLANES)
    elif PLANES == 1:
        low, high = tl.inline_asm_elementwise(
            FIVE_TO_BFLOAT16,
            _FIVE_REGISTERS,
            [raw, offset, turn, bits],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        low, high = tl.inline_asm_elementwise(
            SIX_TO_BFLOAT16,
            _SIX_REGISTERS,
            [raw, offset, turn, bits, tl.broadcast_to(second[:, None], raw.shape)],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    return low, high


@triton.jit
def _plane_levels(raw, offset, turn, first, second, PLANES: tl.constexpr):
    """Returns what the assembly gives for the same operands."""
    rotated = _rotated(first, turn)
    low = (raw & 15).to(tl.uint32) | rotated & 16
    high = (raw >> 4).to(tl.uint32) | (rotated >> 16) & 16
    if PLANES == 2:
        rotated = _rotated(second, turn)
        low |= rotated & 32
        high |= (rotated >> 16) & 32
    less = offset.to(tl.float32) + 128
    return (
        round_to(low.to(tl.float32) + less, tl.bfloat16),
        round_to(high.to(tl.float32) + less, tl.bfloat16),
    )


@triton.jit
def _rotated(bits, turn):
    """Rotates int32 [columns] left by each of a row's numbers, to uint32."""
    whole = bits.to(tl.uint32, bitcast=True)[:, None]
    turn = turn.to(tl.uint32)
    return (whole << turn) | (whole >> ((32 - turn) & 31))
