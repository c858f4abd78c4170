"""Prompts with a gap, as the makers of models write them."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend

from penstock.text.fim import fim_tokens
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import added, byte_level_tokenizer

BEFORE, AFTER = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"
WRITTEN = {
    # Model cards of Qwen2.5-Coder and CodeGemma.
    "qwen": f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>",
    # Model cards of StarCoder 2, Granite Code and Refact.
    "starcoder": f"<fim_prefix>{BEFORE}<fim_suffix>{AFTER}<fim_middle>",
    # DeepSeek-Coder's: the hole stands where the middle is missing.
    "deepseek": f"<｜fim▁begin｜>{BEFORE}<｜fim▁hole｜>{AFTER}<｜fim▁end｜>",
    "code llama": f"▁<PRE>{BEFORE}▁<SUF>{AFTER}▁<MID>",
    # Model card of Seed-Coder.
    "seed": f"<[fim-suffix]>{AFTER}<[fim-prefix]>{BEFORE}<[fim-middle]>",
    # mistral-common 1.13, encode_fim, with tokenizers of version 3.
    "mistral": f"[SUFFIX]{AFTER}[PREFIX]{BEFORE}",
}
MARKS = {
    "qwen": "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|file_sep|> <|endoftext|>",
    "starcoder": "<fim_prefix> <fim_middle> <fim_suffix> <fim_pad> <file_sep> <|endoftext|>",
    "deepseek": "<｜fim▁hole｜> <｜fim▁begin｜> <｜fim▁end｜>",
    "code llama": "▁<PRE> ▁<MID> ▁<SUF> ▁<EOT>",
    "seed": "<[fim-prefix]> <[fim-suffix]> <[fim-middle]>",
    "mistral": "[PREFIX] [MIDDLE] [SUFFIX]",
}


def tokenizer_with(*marks: str) -> Tokenizer:
    backend = Backend.from_str(byte_level_tokenizer().to_str())
    backend.add_special_tokens([added(mark) for mark in marks])
    return Tokenizer(backend.to_str().encode(), add_bos=False, bos_token_id=None)


@pytest.mark.parametrize("name", WRITTEN)
def test_prompts_are_what_the_makers_write(name: str) -> None:
    marks = MARKS[name].split()
    tokenizer = tokenizer_with(*marks)
    tokens = fim_tokens(tokenizer)
    assert tokens is not None
    before, after = tokenizer.encode(BEFORE), tokenizer.encode(AFTER)
    joined = tokens.join([], before, after)
    assert tokenizer.decode(joined, skip_special_tokens=False) == WRITTEN[name]
    assert joined == tokenizer.encode(WRITTEN[name])
    assert tokens.join([7], before, after) == [7, *joined]
    # All of these marks end a middle: none of them is part of a program.
    ids = {token.content: i for i, token in tokenizer.added_tokens.items()}
    assert tokens.ends == {ids[mark] for mark in marks}


def test_a_tokenizer_without_all_of_them_has_none() -> None:
    assert fim_tokens(tokenizer_with()) is None
    assert fim_tokens(tokenizer_with("<|fim_prefix|>", "<|fim_middle|>")) is None
