"""A tokenizer.json as the vocabulary of a GGUF file: what penstock.prepare.gguf_tokenizer reads.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md); the names of
pre-tokenizers are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.gguf_writing import encoded_value
from penstock.prepare.gguf_vocabulary import (
    BYTE,
    CONTROL,
    KEY,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)
from penstock_conversion.quantize.pre_tokenizers import pre_tokenizer_name, steps_of

_UNMERGED = -1e6
"""The score of tokens that no merge makes; llama.cpp, too, never gets to use it."""


def vocabulary_metadata(tokenizer: bytes, size: int) -> dict[str, bytes]:
    """Metadata, as GGUFWriter takes it. tokenizer: tokenizer.json.  size: rows of the embedding.

    Raises UnsupportedModel for a kind of tokenizer that can't be converted.
    """
    described = msgspec.json.decode(tokenizer)
    model, added = described["model"], described.get("added_tokens") or []
    if model.get("type") != "BPE":
        raise UnsupportedModel(
            f"a tokenizer of the kind {model.get('type')} can't be converted to GGUF; byte-level"
            " BPE and SentencePiece's BPE can"
        )
    tokens, types = _tokens(model, added, size)
    merges = [_merge(each) for each in model["merges"]]
    found = {
        f"{KEY}tokens": encoded_value(tokens, "string"),
        f"{KEY}token_type": encoded_value(types, "int32"),
    }
    if model.get("byte_fallback"):
        return found | _sentencepiece(described, tokens, merges)
    pre = pre_tokenizer_name(described)
    written = [f"{left} {right}" for left, right in merges]
    return found | {
        f"{KEY}model": encoded_value("gpt2", "string"),
        f"{KEY}pre": encoded_value(pre, "string"),
        f"{KEY}merges": encoded_value(written, "string"),
    }


def _tokens(
    model: Mapping[str, Any], added: list[dict[str, Any]], size: int
) -> tuple[list[str], list[int]]:
    """Texts and types by id. Ids without a token, as embeddings have after their vocabulary, are
    unused ones."""
    tokens, types = [f"[PAD{number}]" for number in range(size)], [UNUSED] * size
    named = [(text, at, NORMAL) for text, at in model["vocab"].items()]
    named += [
        (each["content"], each["id"], CONTROL if each["special"] else USER_DEFINED)
        for each in added
    ]
    for text, at, kind in named:
        if at >= size:
            raise UnsupportedModel(f"the token {text!r} has the id {at}; the model has {size}")
        tokens[at] = text
        types[at] = kind
    if model.get("byte_fallback"):
        for byte in range(256):
            at = model["vocab"].get(f"<0x{byte:02X}>")
            if at is not None:
                types[at] = BYTE
        unknown = model["vocab"].get(model.get("unk_token") or "")
        if unknown is not None:
            types[unknown] = UNKNOWN
    return tokens, types


def _merge(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def _sentencepiece(
    described: Mapping[str, Any], tokens: list[str], merges: list[tuple[str, str]]
) -> dict[str, bytes]:
    """Scores in place of merges, by which the same ones follow."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    scores = [-float(ranks[text]) if text in ranks else _UNMERGED for text in tokens]
    prefix = any(step.get("type") == "Prepend" for step in steps_of(described.get("normalizer")))
    metaspace = [
        step for step in steps_of(described.get("pre_tokenizer")) if step["type"] == "Metaspace"
    ]
    prefix = prefix or any(step.get("prepend_scheme") != "never" for step in metaspace)
    return {
        f"{KEY}model": encoded_value("llama", "string"),
        f"{KEY}pre": encoded_value("default", "string"),
        f"{KEY}scores": encoded_value(scores, "float32"),
        f"{KEY}add_space_prefix": encoded_value(prefix, "bool"),
    }
