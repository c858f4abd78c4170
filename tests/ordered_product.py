"""The product of Triton's interpreter, in one order of sums.

The interpreter multiplies tiles with NumPy, that is with OpenBLAS, which adds up in an order that
depends on the tiles' shapes, on their places in memory and on the processor.  Kernels whose rows
must not depend on their company can't be told from others there.  Here each element is the sum over
k = 0, 1, 2 and so on, every product and every partial sum rounded once to the result's type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import DTypeLike, NDArray
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

WORTH_A_LOOK = 512
"""Elements of a product, of which some may be left out."""


def ordered_product(left: NDArray[Any], right: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """left [..., M, K] @ right [..., K, N], in dtype; K at least 1.

    Rows and columns of zeros, with which kernels fill up their tiles, have sums of 0. They are
    multiplied only where another number isn't finite."""
    if left.ndim > 2 or len(left) * right.shape[1] < WORTH_A_LOOK:
        return _summed(left, right, dtype)
    rows, columns = left.any(axis=1), right.any(axis=0)
    wanted, all_of_it = rows.sum() * columns.sum(), len(rows) * len(columns)
    if 2 * wanted > all_of_it or not (np.isfinite(left).all() and np.isfinite(right).all()):
        return _summed(left, right, dtype)
    out = np.zeros((len(rows), len(columns)), dtype)
    out[np.ix_(rows, columns)] = _summed(left[rows], right[:, columns], dtype)
    return out


def _summed(left: NDArray[Any], right: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    columns = np.moveaxis(left, -1, 0)[..., :, None]
    rows = np.moveaxis(right, -2, 0)[..., None, :]
    products = np.multiply(columns, rows, dtype=dtype, order="C")
    total = products[0]
    if total.size > 1:
        # Over the outermost axis, NumPy adds up one after the other; pairs only along the last.
        return np.add.reduce(products, axis=0, dtype=dtype)  # type: ignore[no-any-return]
    for product in products[1:]:
        total += product
    return total


def use_in_interpreter() -> None:
    """Every tl.dot that is interpreted from now on, in this process, adds up in that order."""
    InterpreterBuilder.create_dot = _create_dot


def _create_dot(
    self: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_precision: object
) -> TensorHandle:
    for tile in (a, b):
        # These are held as bits; the kernels convert them before they multiply.
        if tile.dtype.scalar == tl.bfloat16 or tile.dtype.scalar.is_fp8():
            raise NotImplementedError(f"interpreted tl.dot of {tile.dtype.scalar}")
    product = ordered_product(a.data, b.data, d.data.dtype)
    return TensorHandle(product + d.data, d.dtype.scalar)
