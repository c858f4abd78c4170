"""SentencePiece's Unigram: the split of a text whose tokens' scores have the largest sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from penstock.errors import UnsupportedModel
from penstock.prepare.gguf_tokenizer_bpe import SPACE_MARK
from penstock.prepare.gguf_tokenizer_kinds import Built
from penstock.prepare.gguf_vocabulary import KEY, UNKNOWN, Vocabulary, read_scores
from penstock.prepare.tokenizer_bounds import check_character_table, check_pieces


def unigram(vocabulary: Vocabulary) -> Built:
    """Tokens with scores; text is normalised by the file's table of characters."""
    fields = vocabulary.fields
    scores = read_scores(vocabulary)
    unknown = vocabulary.special_id("unknown_token_id")
    if unknown is None:
        unknown = vocabulary.types.index(UNKNOWN) if UNKNOWN in vocabulary.types else None
    check_pieces(vocabulary.tokens, f"{fields.where}: {KEY}tokens", tree=True)
    pieces = list(zip(vocabulary.tokens, scores, strict=True))
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    steps: list[Any] = []
    if f"{KEY}precompiled_charsmap" in fields:
        steps.append(normalizers.Precompiled(_read_table(vocabulary)))
    scheme = "always" if fields.flag(f"{KEY}add_space_prefix", True) else "never"
    extra = fields.flag(f"{KEY}remove_extra_whitespaces", False)
    mark = pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme=scheme, split=extra)
    if extra:
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    else:
        tokenizer.pre_tokenizer = mark
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Metaspace(SPACE_MARK, prepend_scheme=scheme)
    return Built(tokenizer, add_eos=True, add_sep=False)


def _read_table(vocabulary: Vocabulary) -> bytes:
    where = f"{vocabulary.fields.where}: {KEY}precompiled_charsmap"
    try:
        raw = np.asarray(vocabulary.fields.listed(f"{KEY}precompiled_charsmap", int))
        content = raw.astype(np.uint8).tobytes()  # files have it as signed or unsigned bytes
    except (ValueError, OverflowError) as error:
        raise UnsupportedModel(f"{where} is broken: {error}") from None
    check_character_table(content, where)
    return content
