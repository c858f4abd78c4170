"""How models that were trained to fill in the middle are asked: what stands before a gap and what
stands after it, between special tokens.

A model's tokenizer says whether it has such tokens, and their texts say in which order its makers
put them. Method: Bavarian et al. 2022, arXiv:2207.14255; there, PSM has the prefix first, and SPM
the suffix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.text.tokenizer import Tokenizer

KNOWN_TOKENIZERS = 64
"""Tokenizers whose tokens are remembered."""


@dataclass(frozen=True, slots=True)
class FIMFormat:
    """Texts of the tokens in front of the prefix, of the suffix and, last, of the middle, which may
    be empty."""

    prefix: str
    suffix: str
    middle: str
    suffix_first: bool = False
    ends: tuple[str, ...] = ()
    """Tokens after a middle, besides EOS and those three: what would come next is another file."""
    files: tuple[tuple[str, str], ...] = ()
    """Tokens in front of a repository's name and of a file's in it, as different releases have
    them; empty: such a model was taught single files."""


_FILES = ("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>")

FORMATS = (
    FIMFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=_FILES,
        files=(("<|repo_name|>", "<|file_sep|>"),),
    ),
    FIMFormat(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ends=("<|endoftext|>", "<fim_pad>", "<file_sep>", "<repo_name>", "<filename>"),
        files=(("<repo_name>", "<file_sep>"), ("<reponame>", "<filename>")),
    ),
    FIMFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    FIMFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    FIMFormat("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),
    FIMFormat("[PREFIX]", "[SUFFIX]", "", suffix_first=True, ends=("[MIDDLE]",)),
)
"""In this order: Qwen2.5-Coder and later Qwens, CodeGemma, Granite 4; StarCoder, StarCoder 2,
Granite Code, Refact; DeepSeek-Coder, and V2 and V3; Code Llama; Seed-Coder; Mistral's models with
version 2 of its tokenizer and later, such as Codestral. Sources: the makers' model cards and
mistral-common."""


@dataclass(frozen=True, slots=True)
class FIMTokens:
    """Token ids of a FIMFormat in one tokenizer. middle: empty, or one.  file: in front of a
    repository's name, and of a file's in it; None: there are none."""

    prefix: int
    suffix: int
    middle: tuple[int, ...]
    suffix_first: bool
    ends: frozenset[int]
    file: tuple[int, int] | None = None

    def join(self, front: list[int], before: list[int], after: list[int]) -> list[int]:
        """A prompt. front: BOS, or nothing.  before, after: ids of prefix and suffix."""
        parts = [[self.prefix, *before], [self.suffix, *after]]
        if self.suffix_first:
            parts.reverse()
        return [*front, *parts[0], *parts[1], *self.middle]


@lru_cache(maxsize=KNOWN_TOKENIZERS)
def fim_tokens(tokenizer: Tokenizer) -> FIMTokens | None:
    """None: the model has no such tokens."""
    known = {token.content: i for i, token in tokenizer.added_tokens.items() if token.content}
    for form in FORMATS:
        marks = [text for text in (form.prefix, form.suffix, form.middle) if text]
        if all(text in known for text in marks):
            return FIMTokens(
                known[form.prefix],
                known[form.suffix],
                (known[form.middle],) if form.middle else (),
                form.suffix_first,
                frozenset(known[text] for text in (*marks, *form.ends) if text in known),
                next(
                    (
                        (known[name], known[file])
                        for name, file in form.files
                        if name in known and file in known
                    ),
                    None,
                ),
            )
    return None
