"""Quantiles of measured values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def quantile(ordered: Sequence[float] | np.ndarray, q: float) -> float:
    """Linear interpolation between the closest ranks (Hyndman and Fan 1996, type 7).

    `ordered` ascends, is not empty, and may end in infinities.
    """
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    low = float(ordered[below])
    if position == below or math.isinf(low):
        return low
    return low + (float(ordered[below + 1]) - low) * (position - below)
