"""The most likely token of each row against numpy's, with memory that is used again."""

from __future__ import annotations

import numpy as np
import pytest

from penstock_kernels.cpu.likeliest import Likeliest
from penstock_kernels.cpu.sampler import Row, sample

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("isa")]


def slow(logits: np.ndarray) -> list[int]:
    return [int(np.argmax(row)) if np.isfinite(row).all() else -1 for row in logits]


def test_steps_of_any_size_one_after_another() -> None:
    rng = np.random.default_rng(4)
    likeliest = Likeliest(threads=2)
    for _ in range(60):
        shape = int(rng.choice([0, 1, 1, 2, 5, 33, 64])), int(rng.choice([1, 17, 129, 5000]))
        logits = rng.standard_normal(shape).astype(np.float32)
        if rng.random() < 0.5:
            logits = logits.round()  # Many are equal, of these some -0.
        for row in np.flatnonzero(rng.random(len(logits)) < 0.1):
            logits[row, rng.integers(shape[1])] = rng.choice([np.nan, np.inf, -np.inf])
        before = logits.copy()
        found = likeliest.tokens(logits)
        assert found == slow(logits)
        assert found == sample(logits, [Row(temperature=0.0)] * len(logits)).tokens.tolist()
        assert np.array_equal(logits, before, equal_nan=True)


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Likeliest(0)
    for shape in ((4,), (1, 0), (1, 2, 3)):
        with pytest.raises(ValueError, match="is needed"):
            Likeliest().tokens(np.zeros(shape, np.float32))
