"""A tokenizer as DeBERTa's third version has it: SentencePiece's pieces, which begin with the space
before a word."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")


def spaced_tokenizer(folder: Path) -> None:
    """Words are w5 to w98."""
    pieces = [*SPECIAL, "▁", *(f"▁w{number}" for number in range(5, 99))]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, "unk_token": "[UNK]"}))
