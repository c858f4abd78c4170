"""The larger of the two models, for Penstock and transformers, and as llama.cpp reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def larger(folder: Path) -> Path:
    """Writes a model of the same family with random weights: 256 embeddings of a picture."""
    import torch
    from transformers import LlavaForConditionalGeneration

    from testing.trained.seeing.hub_folder import Shape, config, processor, save, tokenizer

    shape = Shape(
        side=224, patch=14, width=512, inner=1408, tower_layers=8, layers=8, heads=8, kv_heads=4
    )
    torch.manual_seed(1)
    ours = processor(tokenizer(), shape)
    model = LlavaForConditionalGeneration(config(ours.tokenizer, shape))
    save(model.to(torch.bfloat16), ours, folder)
    return folder


@dataclass(frozen=True)
class GGUFFiles:
    text: Path
    mmproj: Path


def as_gguf(folder: Path, to: Path) -> GGUFFiles:
    """The same weights in two files, in float16 but for what llama.cpp's converter leaves in
    float32."""
    from transformers import LlavaForConditionalGeneration

    from tests.worker.vision.mmproj_writer import write_mmproj, write_text_half

    model = LlavaForConditionalGeneration.from_pretrained(folder)
    files = GGUFFiles(to / "text.gguf", to / "mmproj.gguf")
    write_text_half(files.text, model, lambda path, kind: _with_words(path, kind, folder))
    write_mmproj(files.mmproj, model, _HalfWriter)
    return files


class _HalfWriter(gguf.GGUFWriter):
    def add_tensor(self, name: str, tensor: np.ndarray, *more: Any, **options: Any) -> None:
        halved = tensor.ndim >= 2 and "position_embd" not in name
        super().add_tensor(name, tensor.astype(np.float16 if halved else np.float32))


def _with_words(path: str, kind: str, folder: Path) -> gguf.GGUFWriter:
    """A writer that has written the tokenizer."""
    writer = _HalfWriter(path, kind)
    read = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids: dict[str, int] = read["model"]["vocab"] | {
        each["content"]: each["id"] for each in read["added_tokens"]
    }
    special = {each["content"] for each in read["added_tokens"] if each["special"]}
    words = sorted(ids, key=lambda word: ids[word])
    kinds = [gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words]
    merges = [each if isinstance(each, str) else " ".join(each) for each in read["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ids["<s>"])
    writer.add_eos_token_id(ids["</s>"])
    writer.add_pad_token_id(ids["<pad>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))
    return writer
