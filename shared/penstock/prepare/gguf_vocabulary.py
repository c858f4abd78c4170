"""The vocabulary in a GGUF file: its tokens, their types, and those with a part to play.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md), and llama.cpp's
vocabulary loader where the specification is silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from tokenizers import AddedToken, Tokenizer, processors

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.prepare.tokenizer_bounds import check_pieces

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types of the GGUF specification."""
KEY = "tokenizer.ggml."

END_OF_TURN = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|call|>", "<EOT>", "_<EOT>"),
    *("[EOT]", "<end_of_utterance>", "<turn|>", "<|flush|>", "<|calls|>"),
)
"""Texts of control tokens that end an answer, for files that don't name theirs."""
END_OF_MESSAGE = ("<|eom_id|>", "<|tool_response>")
"""Texts of tokens that end an answer with a call of a tool, for files that don't name theirs. Gemma
4's is of the user's own type; the release's generation_config.json ends at it as well."""
END_OF_DOCUMENT = (
    *("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|return|>", "[e~["),
    "<｜end▁of▁sentence｜>",
)
"""Texts of control tokens that end a document. A file has one EOS id: if that ends a turn, the
document's, which the release's generation_config.json also lists, can only be found by its text.
Tokens of other types with these texts are words, as `</s>` is in Gemma's HTML."""
_CHANNELS = ("<|return|>", "<|flush|>")
"""Tokens by which a vocabulary is recognised in which `<|end|>` ends a part of an answer, not the
answer."""


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens in the order of their ids, and the type of each."""

    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    """Ids of the tokens, without the unused ones, which often share one text."""
    fields: Fields

    def special_id(self, *names: str, texts: Sequence[str] = ()) -> int | None:
        """The id that the file gives under the first of these keys (`bos_token_id`, …) that it
        has, or else that of the first of these texts that is a token."""
        for name in names:
            if f"{KEY}{name}" in self.fields:
                found = self.fields.integer(f"{KEY}{name}")
                if not 0 <= found < len(self.tokens):
                    raise UnsupportedModel(
                        f"{self.fields.where}: {KEY}{name}: {found} is outside the vocabulary of "
                        f"{len(self.tokens)} tokens"
                    )
                return found
        return next((self.ids[text] for text in texts if text in self.ids), None)


def read_vocabulary(fields: Fields) -> Vocabulary:
    """Raises UnsupportedModel for a vocabulary that is broken."""
    tokens = fields.listed(f"{KEY}tokens", str)
    check_pieces(tokens, f"{fields.where}: {KEY}tokens", tree=False)
    types = [NORMAL] * len(tokens)
    if f"{KEY}token_type" in fields:
        types = fields.listed(f"{KEY}token_type", int)
    if len(types) != len(tokens):
        raise UnsupportedModel(f"{fields.where}: {len(tokens)} tokens but {len(types)} token types")
    ids = {token: i for i, token in enumerate(tokens) if types[i] != UNUSED}
    if len(ids) != len(types) - types.count(UNUSED) or not ids:
        raise UnsupportedModel(
            f"{fields.where}: the vocabulary is empty, or two of its tokens have the same text"
        )
    return Vocabulary(tokens=tokens, types=types, ids=ids, fields=fields)


def read_scores(vocabulary: Vocabulary) -> list[float]:
    """One for each token. Raises UnsupportedModel if they are missing or not finite."""
    scores = vocabulary.fields.listed(f"{KEY}scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise UnsupportedModel(
            f"{vocabulary.fields.where}: {len(vocabulary.tokens)} tokens but {len(scores)} scores"
        )
    if any(score != score or score in (float("inf"), float("-inf")) for score in scores):
        raise UnsupportedModel(f"{vocabulary.fields.where}: {KEY}scores holds NaN or infinity")
    return scores


def add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens that are found in text before it is split: control tokens, which are special, and
    those that the user defined, which aren't."""
    special: list[AddedToken] = []
    plain: list[AddedToken] = []
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in (CONTROL, UNKNOWN, USER_DEFINED) and token:
            stripping = _stripping(token, vocabulary.fields)
            added = AddedToken(token, normalized=False, special=kind != USER_DEFINED, **stripping)
            (plain if kind == USER_DEFINED else special).append(added)
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _stripping(token: str, fields: Fields) -> dict[str, bool]:
    """Whether a token strips the white space around it. Files don't say it: the models with such
    tokens are known by name."""
    if token == "<mask>":
        return {"lstrip": True}
    name = fields.text("general.name", "").lower()
    if "phi-3" in name or "phi3" in name:
        return {"rstrip": token not in ("<unk>", "<s>", "<|endoftext|>")}
    return {}


def end_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids that end an answer: the file's EOS, end of turn and end of message, and ends of
    documents.

    Where the file doesn't name an end of turn or message, tokens that are known as such count; so
    does each that is known to end a document. llama.cpp finds its own by the same texts.
    """
    stated = [vocabulary.special_id(f"{name}_token_id") for name in ("eos", "eot", "eom")]
    found = [each for each in stated if each is not None]
    if stated[1] is None:
        found += _known(vocabulary, _ends_of_turn(vocabulary))
    if stated[2] is None:
        found += _known(vocabulary, END_OF_MESSAGE, (CONTROL, USER_DEFINED))
    found += _known(vocabulary, END_OF_DOCUMENT)
    return tuple(dict.fromkeys(found))


def _ends_of_turn(vocabulary: Vocabulary) -> tuple[str, ...]:
    if any(text in vocabulary.ids for text in _CHANNELS):
        return tuple(text for text in END_OF_TURN if text != "<|end|>")
    return END_OF_TURN


def _known(
    vocabulary: Vocabulary, texts: Sequence[str], types: Sequence[int] = (CONTROL,)
) -> list[int]:
    """Ids of the tokens with these texts that are of one of these types."""
    ids = (vocabulary.ids.get(text) for text in texts)
    return [each for each in ids if each is not None and vocabulary.types[each] in types]


def frame(tokenizer: Tokenizer, first: str | None, last: str | None, *, pairs: bool) -> None:
    """Puts special tokens around a text.

    pairs: whether two texts that belong together are of two types, as BERT has them; otherwise
    the second has an end of its own, and a second end of the first before it.
    """
    begin, end = ([first] if first else []), ([last] if last else [])
    if not begin and not end:
        return
    second = ["$B:1", *(f"{token}:1" for token in end)] if pairs else [*end, "$B", *end]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, *second],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*begin, *end}],
    )


@dataclass(frozen=True)
class Built:
    """What a kind of vocabulary becomes: a tokenizer, and what holds where the file is silent."""

    tokenizer: Tokenizer
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    pairs: bool = False
    """Whether two texts that belong together are of two types."""
