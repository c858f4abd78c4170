"""Folders of tiny models by transformers, with a tokenizer, and what llama.cpp's converter makes of
them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer

from testing.tiny_models import CHATML, byte_level_tokenizer
from tests.worker.models.family_cases import CASES
from tests.worker.models.test_gguf_families import OWN
from tests.worker.models.test_parity_families import make_theirs

VOCAB = 700


def make_model(case: str, **settings: Any) -> Any:
    """A model of transformers with random weights and room for the tiny tokenizers' tokens."""
    family, own = OWN.get(case) or CASES[case]
    return make_theirs(family, own | {"vocab_size": VOCAB} | settings)


def write_folder(folder: Path, theirs: Any, tokenizer: Tokenizer | None = None, **ids: Any) -> Path:
    """The model's folder. ids: of generation_config.json."""
    folder.mkdir()
    tied = theirs.config.tie_word_embeddings
    state = {
        name: tensor.contiguous()
        for name, tensor in theirs.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    save_file(state, folder / "model.safetensors")
    ends = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": None}
    config = theirs.config.to_dict() | {"architectures": [type(theirs).__name__]} | ends
    (folder / "config.json").write_text(json.dumps(config, default=str))
    (folder / "tokenizer.json").write_text((tokenizer or byte_level_tokenizer()).to_str())
    said = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "chat_template": CHATML}
    said = said if tokenizer is None else {"eos_token": "</s>", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "generation_config.json").write_text(json.dumps(ids or {"eos_token_id": [2, 0]}))
    return folder
