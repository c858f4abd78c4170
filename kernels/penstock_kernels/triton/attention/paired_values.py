"""Values of a cache in FP8, read as pairs of neighbouring columns.

A product by `mma.sync` wants two keys' numbers of one column in a register. Numbers of 16 bits are
transposed to that as they are loaded (`ldmatrix.trans`), bytes one by one. So two bytes are loaded
as one number of 16 bits, and a register of two such is widened to two: of two keys' even column,
and of their odd one. The even and the odd columns are summed apart; each sum is of the same
products in the same order as otherwise, and has the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.rounding import INTERPRETED, widened


def _widening(ends: str) -> str:
    """PTX: in $2 two keys' pairs of e4m3, the first key's in the lower half. To $0 both keys' even
    column and to $1 their odd one, by way of float16, which has all values of e4m3."""
    return (
        "{\n.reg .b16 ours, next;\n.reg .b32 low, high;\n"
        "mov.b32 {ours, next}, $2;\n"
        "cvt.rn.f16x2.e4m3x2 low, ours;\n"
        "cvt.rn.f16x2.e4m3x2 high, next;\n"
        f"{ends}}}"
    )


TO_BFLOAT16 = tl.constexpr(
    _widening(
        ".reg .b16 a, b, c, d;\n.reg .b32 e, f, g, h;\n"
        "mov.b32 {a, b}, low;\n"
        "mov.b32 {c, d}, high;\n"
        "cvt.f32.f16 e, a;\n"
        "cvt.f32.f16 f, b;\n"
        "cvt.f32.f16 g, c;\n"
        "cvt.f32.f16 h, d;\n"
        "cvt.rn.bf16x2.f32 $0, g, e;\n"
        "cvt.rn.bf16x2.f32 $1, h, f;\n"
    )
)
TO_FLOAT16 = tl.constexpr(
    _widening("prmt.b32 $0, low, high, 0x5410;\nprmt.b32 $1, low, high, 0x7632;\n")
)
_REGISTERS = tl.constexpr("=r,=r,r")


@triton.jit
def pairs_to(pairs, dtype: tl.constexpr):
    """Returns the even and the odd columns, widened to bfloat16 or float16, which is exact.

    `pairs`: [keys, columns / 2] int16, each two of e4m3, the even column in the lower byte.
    """
    if INTERPRETED:
        even, odd = _column(pairs, dtype), _column(pairs >> 8, dtype)
    elif dtype == tl.bfloat16:
        even, odd = tl.inline_asm_elementwise(
            TO_BFLOAT16, _REGISTERS, [pairs], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    else:
        even, odd = tl.inline_asm_elementwise(
            TO_FLOAT16, _REGISTERS, [pairs], (tl.float16, tl.float16), is_pure=True, pack=2
        )
    return even, odd


@triton.jit
def _column(pairs, dtype: tl.constexpr):
    return widened((pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True), dtype)


@triton.jit
def interleaved(even, odd):
    """Returns [rows, columns] of the even and the odd columns, each [rows, columns / 2]."""
    return tl.join(even, odd).reshape(even.shape[0], 2 * even.shape[1])
