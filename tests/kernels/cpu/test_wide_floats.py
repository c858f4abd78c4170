"""Products by floats in registers wider than the kernels' own: any number of rows has the bits of
AVX2. In a process of its own, as none has them any more once a test has chosen an instruction
set."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from penstock_kernels.cpu import library
from tests.instruction_sets import instruction_set
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder
from tests.kernels.cpu.steps import Run, chunks, random_tokens

LENGTH = 25


def computed() -> list[bytes]:
    """A sequence's logits, by so many rows in a step."""
    model = SlowDecoder(Sizes(hidden=72, inner=100, head_dim=48))
    tokens = random_tokens(model.sizes.vocab, LENGTH, 1)
    return [
        Run(model.packed(num_blocks=4), [tokens]).steps(chunks(0, LENGTH, rows)).of(0).tobytes()
        for rows in range(1, LENGTH + 1)
    ]


def check() -> None:
    found = computed()
    library.use("avx2")
    assert len(set(found + computed())) == 1
    assert np.isfinite(np.frombuffer(found[0], np.float32)).all()


@pytest.mark.slow
@pytest.mark.usefixtures("loaded")
def test_any_number_of_rows() -> None:
    with instruction_set("avx2"):  # or the test is skipped
        code = f"from {__name__} import check; check()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
