"""Interpreted and reference kernels keep their rows' bits on lesser processors too: on one
with AVX-512 the libraries that are asked to do without it behave as they do there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreted_triton import DEVICE

LESSER = {
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
FOLDER = Path(__file__).parent
TESTS = [
    "test_products.py::test_linear",
    "test_attention.py::test_bits_depend_on_the_sequence_alone",
    "../test_attention.py::test_bits_depend_on_the_sequence_alone",
    "../test_row_invariance.py::test_linear",
    "../test_row_invariance.py::test_encoders_products",
]
SOME = (
    "(65 and 130) or (80 and float32) or (2-threads and float32 and (34 or 577-33))"
    " or (encoders and 2-threads)"
)
"""The quickest of the tests that failed there."""


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU has products of its own")
@pytest.mark.timeout(240)
def test_bits_without_avx512() -> None:
    tests = [str(FOLDER / name) for name in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", SOME, *tests],
        cwd=FOLDER.parents[2],
        env={**os.environ, **LESSER},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
