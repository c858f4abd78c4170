"""Dynamic time warping: the cheapest way through a matrix that goes back in neither direction.

Source: Sakoe and Chiba, "Dynamic programming algorithm optimization for spoken word recognition",
1978.
"""

from __future__ import annotations

import numpy as np

_BOTH, _ROW, _COLUMN = 0, 1, 2
"""What the way has done to arrive: gone on in rows and columns, in rows, or in columns."""


def first_columns(costs: np.ndarray) -> np.ndarray:
    """Returns for each row the first column that the cheapest way comes through, [rows] int64.

    costs: [rows, columns] float64, with at least one of each. The way begins in the first row and
    column, and ends in the last ones. Sums are rounded to float32. Of equally cheap ways, the one
    is taken that arrives by columns.
    """
    arrived = _arrivals(costs)
    row, column = costs.shape
    found = np.zeros(row, np.int64)
    while row and column:
        found[row - 1] = column - 1
        how = arrived[row + column, row]
        row, column = row - (how != _COLUMN), column - (how != _ROW)
    return found


def _arrivals(costs: np.ndarray) -> np.ndarray:
    """How the cheapest way arrives at row r and column c, counted from 1, at [r + c, r]. Places
    with the same r + c are computed together."""
    rows, columns = costs.shape
    flat = np.ascontiguousarray(costs).reshape(-1)
    arrived = np.empty((rows + columns + 1, rows + 1), np.uint8)
    before = np.full(rows + 1, np.inf, np.float32)
    two_before = before.copy()
    two_before[0] = 0.0
    for total in range(2, rows + columns + 1):
        low, high = max(1, total - columns), min(rows, total - 1)
        both = two_before[low - 1 : high]
        by_row, by_column = before[low - 1 : high], before[low : high + 1]
        is_both = (both < by_row) & (both < by_column)
        is_row = (by_row < both) & (by_row < by_column)
        best = np.where(is_both, both, np.where(is_row, by_row, by_column))
        places = (np.arange(low, high + 1) - 1) * (columns - 1) + total - 2
        current = np.full(rows + 1, np.inf, np.float32)
        current[low : high + 1] = flat[places] + best
        arrived[total, low : high + 1] = np.where(is_both, _BOTH, np.where(is_row, _ROW, _COLUMN))
        two_before, before = before, current
    return arrived
