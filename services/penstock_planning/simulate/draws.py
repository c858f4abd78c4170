"""Random numbers of traces."""

from __future__ import annotations

import math
import random


def log_normal(rng: random.Random, median: int, sigma: float) -> int:
    """Returns a log-normal whole number, at least 1."""
    return max(1, round(rng.lognormvariate(math.log(median), sigma)))
