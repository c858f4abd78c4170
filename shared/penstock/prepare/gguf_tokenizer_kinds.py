"""What a kind of vocabulary becomes."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True)
class Built:
    """A tokenizer, and what holds where the file is silent."""

    tokenizer: Tokenizer
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    pairs: bool = False
    """Whether two texts that belong together are of two types."""
