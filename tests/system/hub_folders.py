"""Tiny models as folders of the hub, and what transformers goes on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

TEXT_ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
"""The ends of the tokenizer that models share which see or hear."""


def write_folder(
    folder: Path,
    model: Any,
    processor: Any,
    tokens: Tokenizer,
    *,
    named: Mapping[str, str] = TEXT_ENDS,
    template: str = "",
) -> Path:
    """Weights, the processor's settings, tokenizer and chat template. named: special tokens."""
    ids = tokens.get_vocab(with_added_tokens=True)
    model.generation_config.eos_token_id = ids[named["eos_token"]]
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    tokens.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(named)))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def of_user(*parts: Any) -> list[dict[str, Any]]:
    """A conversation of one turn. parts: texts and pictures."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_pil", "image_pil": part}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


def continued(model: Any, given: Mapping[str, Any], count: int) -> tuple[list[int], list[int]]:
    """(the prompt's ids, so many tokens, the likeliest each, that come after it)."""
    import torch

    prompt_token_ids = given["input_ids"][0].tolist()
    with torch.no_grad():
        found = model.generate(**given, max_new_tokens=count, min_new_tokens=count, do_sample=False)
    return prompt_token_ids, found[0, len(prompt_token_ids) :].tolist()
