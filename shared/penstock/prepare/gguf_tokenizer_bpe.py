"""Vocabularies with merges: byte-level BPE, and BPE over text with marks for spaces."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.prepare.gguf_pretokenizers import PRE_TOKENIZERS, PreTokenizer, find_pre_tokenizer
from penstock.prepare.gguf_tokenizer_kinds import Built
from penstock.prepare.gguf_vocabulary import KEY, UNKNOWN, Vocabulary

SPACE_MARK = "▁"


def byte_level_bpe(vocabulary: Vocabulary) -> Built:
    """BPE as in GPT-2: bytes are written as letters, merges are given."""
    fields = vocabulary.fields
    pre = find_pre_tokenizer(fields.text(f"{KEY}pre", "default"), fields.where)
    if pre.raw:
        return _marked(vocabulary, pre)
    merges = _read_merges(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=pre.ignore_merges))
    if fields.flag(f"{KEY}normalizer.nfc", pre.nfc):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.ByteLevel()
    return Built(tokenizer, add_bos=pre.add_bos, add_sep=pre.add_sep)


def marked_bpe(vocabulary: Vocabulary) -> Built:
    """Gemma 4's: merges as in byte-level BPE, but over text in which marks stand for spaces."""
    return _marked(vocabulary, PRE_TOKENIZERS["gemma4"])


def _marked(vocabulary: Vocabulary, pre: PreTokenizer) -> Built:
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary.ids,
            _read_merges(vocabulary),
            unk_token=unknown_text(vocabulary),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Built(tokenizer, add_bos=pre.add_bos)


def unknown_text(vocabulary: Vocabulary) -> str | None:
    """The text of the token for what the vocabulary lacks."""
    unknown = vocabulary.special_id("unknown_token_id")
    if unknown is None and UNKNOWN in vocabulary.types:
        unknown = vocabulary.types.index(UNKNOWN)
    return None if unknown is None else vocabulary.tokens[unknown]


def _read_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    fields, ids = vocabulary.fields, vocabulary.ids
    merges = [_split_merge(merge, fields) for merge in fields.listed(f"{KEY}merges", str)]
    for left, right in merges:  # the library panics at one that isn't known
        if not (left in ids and right in ids):
            raise UnsupportedModel(f"{fields.where}: a merge of {left!r} and {right!r}: no tokens")
        if left + right not in ids:
            raise UnsupportedModel(f"{fields.where}: a merge gives {left + right!r}: no token")
    return merges


def _split_merge(merge: str, fields: Fields) -> tuple[str, str]:
    """A merge is written "left right". The left one may begin with a space itself."""
    space = merge.find(" ", 1)
    if space < 0 or space == len(merge) - 1:
        raise UnsupportedModel(f"{fields.where}: the merge {merge!r} is not two tokens")
    return merge[:space], merge[space + 1 :]
