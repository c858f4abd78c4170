"""SentencePiece's BPE: spaces are marks, merges follow from scores, and what is not in the
vocabulary falls back to byte tokens."""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from penstock.prepare.gguf_scores import merges_from_scores
from penstock.prepare.gguf_tokenizer_bpe import SPACE_MARK, unknown_text
from penstock.prepare.gguf_tokenizer_kinds import Built
from penstock.prepare.gguf_vocabulary import KEY, NORMAL, Vocabulary, read_scores


def sentencepiece_bpe(vocabulary: Vocabulary) -> Built:
    fields = vocabulary.fields
    usable = [
        token if kind == NORMAL else None
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    merges = merges_from_scores(usable, read_scores(vocabulary), fields.where)
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary.ids,
            merges,
            unk_token=unknown_text(vocabulary),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = fields.flag(f"{KEY}add_space_prefix", True)
    steps: list[Any] = [normalizers.Replace(" ", SPACE_MARK)]
    spaces: list[Any] = [
        decoders.Replace(SPACE_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefix:
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
        spaces.append(decoders.Strip(" ", 1, 0))
    if fields.flag(f"{KEY}remove_extra_whitespaces", False):
        steps[:0] = [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(spaces)
    return Built(tokenizer, add_bos=True)
