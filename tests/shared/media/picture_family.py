"""What a family that sees is tried with, and its folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from tests.shared.media.media_tokenizer import tokenizer


class Family(NamedTuple):
    """architecture, config: config.json's.  processor: of transformers, over a tokenizer.
    mark: what stands for a picture in a prompt's text.  tokens: special ones that only it has."""

    architecture: str
    config: Callable[[dict[str, int]], dict[str, Any]]
    processor: Callable[[PreTrainedTokenizerFast], Any]
    mark: str
    tokens: tuple[str, ...] = ()


def write_folder(folder: Path, family: Family, *more: str) -> Any:
    """Writes config.json, tokenizer.json and what the processor saves. Returns the processor. more:
    special tokens that the tokenizer has beside the usual ones."""
    made = tokenizer(*family.tokens, *more)
    made.save(str(folder / "tokenizer.json"))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    processor = family.processor(fast)
    processor.image_processor.save_pretrained(folder)
    ids = made.get_vocab(with_added_tokens=True)
    config = {"architectures": [family.architecture], **family.config(ids)}
    (folder / "config.json").write_text(json.dumps(config))
    return processor
