"""Models for late interaction that tests make: an encoder of transformers with a projection, and
the files that pylate or Stanford's ColBERT write beside it."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from testing.pooling_models import VOCAB, save

SIZES = {"hidden_size": 48, "intermediate_size": 72, "num_attention_heads": 3}
"""Heads of 16 numbers: what the CPU kernels multiply at a time."""
MODERN = {"local_attention": 24, "num_hidden_layers": 4, "bos_token_id": 1, "eos_token_id": 2} | {
    f"{name}_token_id": number for name, number in (("pad", 0), ("cls", 1), ("sep", 2))
}
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", *string.punctuation]
"""The first words of the tokenizer."""
SETTINGS: dict[str, Any] = {
    "__version__": {"sentence_transformers": "4.0.2", "transformers": "4.48.2"},
    "prompts": {},
    "default_prompt_name": None,
    "similarity_fn_name": "MaxSim",
    "query_prefix": "[unused0]",
    "document_prefix": "[unused1]",
    "query_length": 12,
    "document_length": 60,
    "attend_to_expansion_tokens": False,
    "skiplist_words": list(string.punctuation),
}
"""As pylate wrote them for answerai-colbert-small-v1, but for the lengths."""


def late_tokenizer(folder: Path) -> None:
    """Whole words between [CLS] and [SEP]."""
    words = {word: number for number, word in enumerate(SPECIAL)}
    words |= {f"w{number}": number for number in range(len(SPECIAL), VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [(word, SPECIAL.index(word)) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    stated = {f"{word.strip('[]').lower()}_token": word for word in SPECIAL[:4]}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))


def save_late(
    folder: Path, kind: str = "BertModel", outputs: int = 20, **settings: Any
) -> tuple[Any, torch.Tensor]:
    """A random model as pylate saves it. settings: of config_sentence_transformers.json, beyond
    SETTINGS. Returns transformers' model and the projection, [outputs, hidden]."""
    model = save(folder, kind, **SIZES, **(MODERN if kind == "ModernBertModel" else {}))
    model.set_attn_implementation("eager")
    late_tokenizer(folder)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Dense").mkdir()
    stated = {"in_features": SIZES["hidden_size"], "out_features": outputs, "bias": False}
    stated |= {"activation_function": "torch.nn.modules.linear.Identity", "use_residual": False}
    (folder / "1_Dense" / "config.json").write_text(json.dumps(stated))
    weight = torch.randn(outputs, SIZES["hidden_size"])
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps({**SETTINGS, **settings}))
    return model, weight


def save_stanford(folder: Path, **metadata: Any) -> tuple[Any, torch.Tensor]:
    """A random model as Stanford's ColBERT saves it (save_late)."""
    model = save(folder, "BertModel", **SIZES)
    late_tokenizer(folder)
    weight = torch.randn(20, 48)
    file = folder / "model.safetensors"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(file).items()}
    save_file({**tensors, "linear.weight": weight}, file)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    stated = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 12}
    stated |= {"doc_maxlen": 60, "mask_punctuation": True, "dim": 20, "similarity": "cosine"}
    (folder / "artifact.metadata").write_text(json.dumps({**stated, **metadata}))
    return model, weight


def expected(model: Any, weight: torch.Tensor, tokens: list[int], seen: int = 0) -> np.ndarray:
    """Each token's vector, in transformers. seen: tokens that attention sees, the first; 0: all."""
    mask = torch.ones(1, len(tokens), dtype=torch.long)
    if seen:
        mask[:, seen:] = 0
    with torch.inference_mode():
        hidden = model(torch.tensor([tokens]), attention_mask=mask).last_hidden_state[0]
        return torch.nn.functional.normalize(hidden @ weight.T, dim=1).numpy()
