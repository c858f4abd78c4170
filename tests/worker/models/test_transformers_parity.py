"""Architectures that no family describes, against transformers itself on the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.models.parity import compare
from tests.worker.models.test_parity_families import random_prompts
from tests.worker.models.transformers_cases import CASES, described, make_theirs

pytestmark = pytest.mark.slow


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES)
def test_transformers_own_code_equals_transformers(case: str, tmp_path: Path) -> None:
    """Prompts' logits, and 64 greedy tokens, on two threads at once."""
    theirs = make_theirs(case)
    theirs.save_pretrained(tmp_path)
    prompts = random_prompts()
    assert compare(described(tmp_path), theirs, prompts, 64) >= len(prompts) * 16
