"""The default model against transformers' own reading of the same GGUF file, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.model_config import PreparedModel
from penstock.text.tokenizer import Tokenizer
from penstock_worker.models.decoder import DecoderModel
from tests.worker.driver import Driver, Job, make_runner
from tests.worker.parity import compare
from tests.worker.prompts import LONG, TEXTS

WANTED = 64


@pytest.fixture(scope="module")
def transformers_model(default_model: PreparedModel) -> Any:
    """Its own GGUF reader and dequantisation: nothing of ours takes part."""
    import transformers

    (file,) = map(Path, default_model.weights.files)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    )
    return model.eval()


@pytest.fixture(scope="module")
def prompts(default_folder: Path, default_model: PreparedModel) -> list[list[int]]:
    tokenizer = Tokenizer.from_bytes(
        (default_folder / "tokenizer.json").read_bytes(),
        add_bos=default_model.add_bos,
        bos_token_id=default_model.generation.bos_token_id,
    )
    found = [tokenizer.encode(text) for text in TEXTS]
    for _, text, length in LONG:
        found.append(tokenizer.encode(text * (length // 20))[:length])
    return found


@pytest.mark.timeout(400)
def test_prompts_and_64_greedy_tokens(
    default_float32: DecoderModel, transformers_model: Any, prompts: list[list[int]]
) -> None:
    lengths = sorted(map(len, prompts))
    assert len(prompts) >= 24
    assert lengths[0] == 1
    assert lengths[-1] == 1500
    compared = compare(default_float32, transformers_model, prompts, WANTED)
    # Most answers have no near tie in 64 steps: were it otherwise, little would be shown.
    assert compared >= len(prompts) * WANTED // 2


@pytest.mark.timeout(120)
def test_generate_gives_our_tokens(
    default_float32: DecoderModel, transformers_model: Any, prompts: list[list[int]]
) -> None:
    """Once the literal way: transformers' generate with its KV cache."""
    ours = Job(prompts[2], 24)
    Driver(make_runner(default_float32)).run([ours])
    theirs = transformers_model.generate(
        torch.tensor([prompts[2]]), max_new_tokens=24, do_sample=False, eos_token_id=-1
    )
    assert theirs[0, len(prompts[2]) :].tolist() == ours.tokens
