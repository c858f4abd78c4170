"""Speed doesn't cost quality: perplexity of the default model on a fixed text, against transformers
on the dequantised weights in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.text.tokenizer import Tokenizer
from tests.worker.forward.perplexity import TEXT, Penstock, Transformers, perplexity


@pytest.fixture(scope="module")
def tokens(default_tokenizer: Tokenizer) -> list[int]:
    found = default_tokenizer.encode(TEXT.read_text())
    assert len(found) > 1400
    return found


@pytest.fixture(scope="module")
def truth(transformers_model: Any, tokens: list[int]) -> float:
    return perplexity(Transformers(transformers_model), tokens)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("dtype", "cache", "bound"),
    [
        pytest.param("float32", "auto", 1e-4, marks=pytest.mark.long),
        pytest.param("bfloat16", "auto", 5e-3, marks=pytest.mark.long),
        ("auto", "auto", 5e-3),
        pytest.param("float32", "int8", 5e-3, marks=pytest.mark.long),
        pytest.param("auto", "int8", 5e-3, marks=pytest.mark.long),
    ],
)
def test_perplexity(
    default_folder: Path, tokens: list[int], truth: float, dtype: str, cache: str, bound: float
) -> None:
    """dtype auto: weights and activations as quantised numbers."""
    ours = perplexity(Penstock(default_folder, dtype, kv_cache_dtype=cache), tokens)
    assert 1 < truth < 40
    assert abs(ours / truth - 1) < bound, (ours, truth)


@pytest.mark.timeout(600)
@pytest.mark.long
def test_perplexity_in_two_parts(default_folder: Path, tokens: list[int], truth: float) -> None:
    """With weights as the file has them; as near as float32 throughout."""
    settings = {"kv_cache_dtype": "float32", "matmul_precision": "high"}
    ours = perplexity(Penstock(default_folder, "auto", **settings), tokens)
    assert abs(ours / truth - 1) < 1e-4, (ours, truth)
