"""The name by which GGUF files say how a byte-level tokenizer splits text into words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.prepare.gguf_tokenizer_bpe import PRE_TOKENIZERS, PreTokenizer


def pre_tokenizer_name(described: Mapping[str, Any]) -> str:
    """llama.cpp's name. described: tokenizer.json. Raises UnsupportedModel where it has none."""
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
    steps = steps_of(described.get("pre_tokenizer"))
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
    normalizers = [step["type"] for step in steps_of(described.get("normalizer"))]
    if any(each != "NFC" for each in normalizers):
        return tuple(normalizers)
    ignores = bool(described["model"].get("ignore_merges"))
    return tuple(patterns), digits, ignores, bool(normalizers)


def _known_splits(known: PreTokenizer) -> tuple[Any, ...]:
    return known.patterns, known.digits, known.ignore_merges, known.nfc


def steps_of(whole: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normaliser or pre-tokenizer one by one."""
    if whole is None:
        return
    if whole["type"] != "Sequence":
        yield whole
        return
    for part in whole.get("pretokenizers") or whole.get("normalizers") or ():
        yield from steps_of(part)
