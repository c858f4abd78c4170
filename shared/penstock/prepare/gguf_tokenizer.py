"""tokenizer.json from the vocabulary in a GGUF file, made with the tokenizers library.

BOS is not part of the post-processor: manifest.add_bos says whether it is added, and
`penstock.text.Tokenizer` adds it, in that one place.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.prepare.gguf_pretokenizers import find_pre_tokenizer
from penstock.prepare.gguf_scores import merges_from_scores

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types of the GGUF specification."""
SPACE_MARK = "▁"


class BuiltTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """json: tokenizer.json.  add_bos: whether plain prompts begin with BOS."""

    json: bytes
    highest_id: int
    add_bos: bool


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens in the order of their ids, and the type of each."""

    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    """Without the unused ones, which often share one text."""


def build_tokenizer(file: GGUFFile) -> BuiltTokenizer:
    """Raises UnsupportedModel if the vocabulary is broken or of a kind that isn't served."""
    fields = Fields(file.metadata, str(file.path))
    kind = fields.text("tokenizer.ggml.model")
    if kind not in _BUILDERS:
        raise UnsupportedModel(
            f"{file.path}: the tokenizer model {kind!r} is not served; "
            "gpt2 (byte-level BPE) and llama (SentencePiece BPE) are"
        )
    if "tokenizer.ggml.add_eos_token" in fields and fields.flag("tokenizer.ggml.add_eos_token"):
        raise UnsupportedModel(f"{file.path}: a tokenizer that ends prompts with EOS is not served")
    vocabulary = _read_vocabulary(fields)
    try:
        tokenizer, add_bos = _BUILDERS[kind](fields, vocabulary)
        _add_tokens(tokenizer, vocabulary)
        text = tokenizer.to_str()
    except UnsupportedModel:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise UnsupportedModel(f"{file.path}: the vocabulary is broken: {error}") from error
    return BuiltTokenizer(
        json=text.encode(),
        highest_id=max(vocabulary.ids.values()),
        add_bos=fields.flag("tokenizer.ggml.add_bos_token", add_bos),
    )


def _read_vocabulary(fields: Fields) -> Vocabulary:
    tokens = fields.listed("tokenizer.ggml.tokens", str)
    types = [NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in fields:
        types = fields.listed("tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise UnsupportedModel(f"{fields.where}: {len(tokens)} tokens but {len(types)} token types")
    ids = {token: i for i, token in enumerate(tokens) if types[i] != UNUSED}
    if len(ids) != len(types) - types.count(UNUSED) or not ids:
        raise UnsupportedModel(
            f"{fields.where}: the vocabulary is empty, or two of its tokens have the same text"
        )
    return Vocabulary(tokens=tokens, types=types, ids=ids)


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens that are found in text before it is split: control tokens, which are special, and
    those that the user defined, which aren't."""
    added = [
        AddedToken(token, normalized=False, special=kind != USER_DEFINED)
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in (CONTROL, UNKNOWN, USER_DEFINED) and token
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])


def _byte_level(fields: Fields, vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    """Byte-level BPE as in GPT-2: bytes are written as letters, merges are given."""
    pre = find_pre_tokenizer(fields.text("tokenizer.ggml.pre", "default"), fields.where)
    merges = [_split_merge(merge, fields) for merge in fields.listed("tokenizer.ggml.merges", str)]
    for left, right in merges:  # the library panics at one that isn't known
        if not (left in vocabulary.ids and right in vocabulary.ids):
            raise UnsupportedModel(f"{fields.where}: a merge of {left!r} and {right!r}: no tokens")
        if left + right not in vocabulary.ids:
            raise UnsupportedModel(f"{fields.where}: a merge gives {left + right!r}: no token")
    tokenizer = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=pre.ignore_merges))
    normalizer = pre.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.add_bos


def _split_merge(merge: str, fields: Fields) -> tuple[str, str]:
    """A merge is written "left right". The left one may begin with a space itself."""
    space = merge.find(" ", 1)
    if space < 0 or space == len(merge) - 1:
        raise UnsupportedModel(f"{fields.where}: the merge {merge!r} is not two tokens")
    return merge[:space], merge[space + 1 :]


def _sentencepiece(fields: Fields, vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    """SentencePiece BPE: spaces are marks, merges follow from scores, what is not in the
    vocabulary falls back to byte tokens."""
    scores = fields.listed("tokenizer.ggml.scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise UnsupportedModel(
            f"{fields.where}: {len(vocabulary.tokens)} tokens but {len(scores)} scores"
        )
    usable = [
        token if kind == NORMAL else None
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    merges = merges_from_scores(usable, scores, fields.where)
    unknown = next((i for i, kind in enumerate(vocabulary.types) if kind == UNKNOWN), None)
    unknown = fields.integer("tokenizer.ggml.unknown_token_id", -1 if unknown is None else unknown)
    unknown_text = vocabulary.tokens[unknown] if 0 <= unknown < len(scores) else None
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary.ids, merges, unk_token=unknown_text, fuse_unk=True, byte_fallback=True
        )
    )
    prefix = fields.flag("tokenizer.ggml.add_space_prefix", True)
    marks: list[Any] = [normalizers.Replace(" ", SPACE_MARK)]
    spaces: list[Any] = [
        decoders.Replace(SPACE_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefix:
        marks.insert(0, normalizers.Prepend(SPACE_MARK))
        spaces.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(marks)
    tokenizer.decoder = decoders.Sequence(spaces)
    return tokenizer, True


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}
