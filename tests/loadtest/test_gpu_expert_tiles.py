"""Tiles of FP8 experts are timed, and held against the same products one expert after another."""

from __future__ import annotations

import pytest

from loadtest.gpu.extent import DRY
from loadtest.gpu.parts.kernels_experts import KINDS, ExpertShape
from loadtest.gpu.tiles import rows
from loadtest.gpu.timing import Timer
from penstock_kernels.triton.matmul_tiles import MatmulTiles
from tests.interpreted_triton import DEVICE


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_of_fp8_experts(kind: str) -> None:
    """One that straddles block scales is a row that says so. Without these it is right."""
    case = ExpertShape(*DRY.experts).case(DRY.expert_rows[0], kind)
    candidates = [MatmulTiles(16, 32, 128, 4, 3), MatmulTiles(16, 32, 64, 4, 3)]
    whole, straddling = rows(case, candidates, DEVICE, Timer(DEVICE, 1))
    assert whole["failed"] == ""
    assert 0 < whole["error"] < 0.01
    assert ("128 are needed" in straddling["failed"]) == (kind == "block")
    assert (straddling["failed"] == "") == (kind == "output")
