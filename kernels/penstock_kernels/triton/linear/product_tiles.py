"""What matrix products have in common: their launch, a program's choice of an output tile, and its
storing.

A program computes COLUMNS outputs of ROWS rows, and no other program writes them.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import launched_early
from penstock_kernels.triton.matmul_tiles import MatmulTiles
from penstock_kernels.triton.rounding import round_to

_GROUP = tl.constexpr(8)
"""Row tiles that go through the columns together, so that their weights stay in the L2 cache."""


def launch(
    kernel: Any,
    out: Tensor,
    bias: Tensor | None,
    *,
    tiles: MatmulTiles,
    stages: int | None = None,
    **arguments: Any,
) -> None:
    """Runs a product's kernel once for each tile of `out`, [rows, outputs], if it has any.

    `kernel`: takes bias, out, rows and outputs, as constants BIAS (whether there is one), ROWS,
    COLUMNS and EARLY, and `arguments`. It begins with await_earlier.
    `stages`: other than those of `tiles`.
    """
    rows, outputs = out.shape
    if not rows:
        return
    kernel[(tiles.programs(rows, outputs),)](
        bias=bias,
        out=out,
        rows=rows,
        outputs=outputs,
        BIAS=bias is not None,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        num_warps=tiles.warps,
        num_stages=tiles.stages if stages is None else stages,
        **launched_early(out.device),
        **arguments,
    )


@triton.jit
def own_tile(rows, outputs, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Returns (row, column, in_rows, in_columns) of this program: [ROWS] and [COLUMNS] indices, and
    which of them exist. The grid's axis 0 is `MatmulTiles.programs`."""
    row_tile, column_tile = _tile_of(
        tl.program_id(0), tl.cdiv(rows, ROWS), tl.cdiv(outputs, COLUMNS)
    )
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    return row, column, row < rows, column < outputs


@triton.jit
def _tile_of(program, row_tiles, column_tiles):
    """Returns the (row tile, column tile) of a program, in bands of _GROUP row tiles."""
    per_band = _GROUP * column_tiles
    first = program // per_band * _GROUP
    height = tl.minimum(row_tiles - first, _GROUP)
    within = program % per_band
    return first + within % height, within // height


@triton.jit
def store_tile(
    acc, bias, out, row, column, in_rows, in_columns, outputs, BIAS: tl.constexpr
):  # fmt: skip
    """out[row, column] = acc + bias, rounded once. `acc` is [ROWS, COLUMNS] float32; `out` is
    [rows, outputs], contiguous."""
    if BIAS:
        acc += tl.load(bias + column, mask=in_columns, other=0.0).to(tl.float32)[None, :]
    place = row.to(tl.int64)[:, None] * outputs + column[None, :]
    mask = in_rows[:, None] & in_columns[None, :]
    tl.store(out + place, round_to(acc, out.dtype.element_ty), mask=mask)
