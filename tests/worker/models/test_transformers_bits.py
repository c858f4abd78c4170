"""In transformers' code too, a row has the same bits in any company and in any chunks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.worker.models.test_family_bits import alone, in_chunks_and_company
from tests.worker.models.transformers_cases import CASES, described, make_theirs


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES)
def test_rows_of_transformers_code_depend_on_their_sequence_alone(
    case: str, tmp_path: Path
) -> None:
    make_theirs(case).save_pretrained(tmp_path)
    model = described(tmp_path)
    for dtype in ("float32", "bfloat16"):
        built = dataclasses.replace(model, dtype=dtype)
        forward = built.forward(block_size=16, num_blocks=32, threads=1)
        again = built.forward(block_size=16, num_blocks=32, threads=1)
        with torch.inference_mode():
            one, other = alone(forward), in_chunks_and_company(again)
        assert bool(one.isfinite().all())
        assert one.std() > 0
        assert torch.equal(one, other)
