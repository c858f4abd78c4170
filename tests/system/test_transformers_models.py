"""A model that no family describes, served by `penstock serve` in transformers' code."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from testing.serving import Server
from testing.tiny_models import byte_level_tokenizer, write_hub_folder

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

PROMPT = "Once upon a time there was a lighthouse"


def save_gpt2(folder: Path) -> Any:
    import transformers

    torch.manual_seed(11)
    config = transformers.GPT2Config(
        vocab_size=700,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_positions=256,
        initializer_range=0.4,
        bos_token_id=0,
        eos_token_id=2,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    write_hub_folder(folder, config={})
    model.save_pretrained(folder)
    return model


def test_served_as_any_other(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    """Few blocks, small chunks and a crowd, so that prompts are cut, cached and preempted."""
    theirs = save_gpt2(tmp_path / "m")
    flags = ["--max-num-batched-tokens", "24", "--num-kv-blocks", "10", "--max-num-seqs", "4"]
    running = start_server(str(tmp_path / "m"), *flags, "--max-model-len", "96")
    assert "transformers' own code computes this model" in running.stderr
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0)

    def ask(number: int = 0, **options: Any) -> Any:
        wanted = {"temperature": 0.0, "max_tokens": 24, "logprobs": 2} | options
        return client.completions.create(
            model=running.model,
            prompt=f"{PROMPT} {number}" if number else PROMPT,
            extra_body={"ignore_eos": True},
            **wanted,
        )

    alone = ask()
    ids = byte_level_tokenizer().encode(PROMPT).ids
    with torch.inference_mode():
        [true] = theirs.generate(
            torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=None
        )
    assert alone.choices[0].text == byte_level_tokenizer().decode(true[len(ids) :].tolist())
    with ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(ask, (0, 1, 2, 0, 3)))
    for answer in (crowd[0], crowd[3]):
        assert answer.choices[0].logprobs == alone.choices[0].logprobs
    several = ask(n=3, temperature=1.0, seed=4)
    assert [choice.text for choice in several.choices] == [
        choice.text for choice in ask(n=3, temperature=1.0, seed=4).choices
    ]
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    shaped = client.completions.create(
        model=running.model,
        prompt=PROMPT,
        max_tokens=40,
        temperature=0.0,
        extra_body={
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema | {"additionalProperties": False}},
            }
        },
    )
    assert set(json.loads(shaped.choices[0].text)) == {"a"}


def test_told_that_it_must_not(tmp_path: Path) -> None:
    save_gpt2(tmp_path / "m")
    with pytest.raises(Exception, match="GPT2LMHeadModel is not served"):
        Server(str(tmp_path / "m"), "--model-impl", "penstock")
