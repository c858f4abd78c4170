"""A tokenizer.json as the vocabulary of a GGUF file: what penstock.prepare.gguf_tokenizer reads.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md); the names of
pre-tokenizers are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.gguf_writing import encoded_value
from penstock.prepare.gguf_tokenizer_bpe import PRE_TOKENIZERS, PreTokenizer
from penstock.prepare.gguf_vocabulary import (
    BYTE,
    CONTROL,
    KEY,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)

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
    pre = _pre_tokenizer(described)
    written = [f"{left} {right}" for left, right in merges]
    return found | {
        f"{KEY}model": encoded_value("gpt2", "string"),
        f"{KEY}pre": encoded_value(pre, "string"),
        f"{KEY}merges": encoded_value(written, "string"),
    }


def _tokens(
    model: Mapping[str, Any], added: list[dict[str, Any]], size: int
) -> tuple[list[str], list[int]]:
    """Texts and types by id. Ids without a token, as embeddings have behind their vocabulary, are
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


# SentencePiece's BPE: no merges but scores, by which the same ones follow.


def _sentencepiece(
    described: Mapping[str, Any], tokens: list[str], merges: list[tuple[str, str]]
) -> dict[str, bytes]:
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    scores = [-float(ranks[text]) if text in ranks else _UNMERGED for text in tokens]
    prefix = any(step.get("type") == "Prepend" for step in _steps(described.get("normalizer")))
    metaspace = [
        step for step in _steps(described.get("pre_tokenizer")) if step["type"] == "Metaspace"
    ]
    prefix = prefix or any(step.get("prepend_scheme") != "never" for step in metaspace)
    return {
        f"{KEY}model": encoded_value("llama", "string"),
        f"{KEY}pre": encoded_value("default", "string"),
        f"{KEY}scores": encoded_value(scores, "float32"),
        f"{KEY}add_space_prefix": encoded_value(prefix, "bool"),
    }


# Byte-level BPE: the name of what splits text into words.


def _pre_tokenizer(described: Mapping[str, Any]) -> str:
    wanted = _splits(described)
    for name, known in PRE_TOKENIZERS.items():
        if not known.raw and _known_splits(known) == wanted:
            return name
    raise UnsupportedModel(
        "the tokenizer splits text into words as none of llama.cpp's pre-tokenizers does:"
        f" {str(wanted)[:300]}"
    )


def _splits(described: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides where words end, and what their tokens are: patterns, and three flags (digits
    alone, whole words first, NFC)."""
    steps = _steps(described.get("pre_tokenizer"))
    patterns: list[str] = []
    digits = False
    for step in steps:
        match step["type"]:
            case "Digits":
                digits = digits or bool(step.get("individual_digits"))
            case "Split":
                pattern = step["pattern"]
                patterns.append(pattern.get("Regex") or pattern.get("String"))
            case "ByteLevel" if step.get("add_prefix_space"):
                return ("a space in front of the text",)
            case "ByteLevel" if step.get("use_regex", True):
                patterns += PreTokenizer().patterns
            case "ByteLevel":
                pass
            case other:
                return (other,)
    normalizers = [step["type"] for step in _steps(described.get("normalizer"))]
    if any(each != "NFC" for each in normalizers):
        return tuple(normalizers)
    ignores = bool(described["model"].get("ignore_merges"))
    return tuple(patterns), digits, ignores, bool(normalizers)


def _known_splits(known: PreTokenizer) -> tuple[Any, ...]:
    return known.patterns, known.digits, known.ignore_merges, known.nfc


def _steps(whole: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normaliser or pre-tokenizer one by one."""
    if whole is None:
        return
    if whole["type"] != "Sequence":
        yield whole
        return
    for part in whole.get("pretokenizers") or whole.get("normalizers") or ():
        yield from _steps(part)
