"""Readers of tiktoken's vocabularies, bytes with a rank each, and of Mistral's in tekken.json.

Source of the formats: tiktoken's loader (a line has a token's bytes in base64, and its rank), and
the keys of mistral-common's tekken.json.
"""

from __future__ import annotations

import base64
import binascii
import re

import msgspec

from penstock.errors import UnsupportedModel
from penstock.prepare.tokenizer_bounds import LONGEST_PIECE
from penstock.text.token_table import HIGHEST_ID, byte_letters

_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\s*(?:\n|$)")
_TEKKEN_NAMED = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
"""Special tokens, by id, of files that don't list theirs."""


def is_tiktoken(content: bytes) -> bool:
    """Whether a file begins as tiktoken's do."""
    return _LINE.match(content) is not None


def read_tiktoken(content: bytes, where: str) -> dict[bytes, int]:
    """The rank, which is the id, of each token. Raises UnsupportedModel."""
    ranks: dict[bytes, int] = {}
    try:
        for line in content.split(b"\n"):
            if line.strip():
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (ValueError, binascii.Error) as error:
        raise UnsupportedModel(f"{where} is not a readable tiktoken file: {error}") from None
    _check(ranks, where)
    return ranks


class _Tekken(msgspec.Struct):
    class Config(msgspec.Struct):
        pattern: str
        default_vocab_size: int
        default_num_special_tokens: int

    class Token(msgspec.Struct):
        rank: int
        token_bytes: str

    class Special(msgspec.Struct):
        rank: int
        token_str: str

    config: Config
    vocab: list[Token]
    special_tokens: list[Special] | None = None


class Tekken(msgspec.Struct, frozen=True, kw_only=True):
    """ranks: token -> id, not counting the special tokens before them.  special: id -> text."""

    pattern: str
    ranks: dict[bytes, int]
    special: dict[int, str]


def read_tekken(content: bytes, where: str) -> Tekken:
    """Raises UnsupportedModel."""
    try:
        file = msgspec.json.decode(content, type=_Tekken)
        first, size = file.config.default_num_special_tokens, file.config.default_vocab_size
        ranks = {
            base64.b64decode(token.token_bytes, validate=True): token.rank + first
            for token in file.vocab
            if token.rank + first < size
        }
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{where} can't be read: {error}") from None
    stated = {each.rank: each.token_str for each in file.special_tokens or ()}
    special = stated or dict(enumerate(_TEKKEN_NAMED))
    _check(ranks, where)
    if not 0 <= first <= HIGHEST_ID or not all(0 <= each < first for each in special):
        raise UnsupportedModel(f"{where}: {first} special tokens, or one with another's id")
    if min(ranks.values()) < first:
        raise UnsupportedModel(
            f"{where} has the rank {min(ranks.values()) - first}; 0 is the first"
        )
    filled = {each: f"<SPECIAL_{each}>" for each in range(first)}
    return Tekken(pattern=file.config.pattern, ranks=ranks, special=filled | special)


def _check(ranks: dict[bytes, int], where: str) -> None:
    """Raises UnsupportedModel for what would take time or memory without bound."""
    if not ranks or len(set(ranks.values())) < len(ranks):
        raise UnsupportedModel(f"{where} has no tokens, or two of one rank")
    if not 0 <= min(ranks.values()) <= max(ranks.values()) <= HIGHEST_ID:
        raise UnsupportedModel(f"{where} has a rank outside of 0 to {HIGHEST_ID}")
    longest = max(map(len, ranks))
    if longest > LONGEST_PIECE:
        raise UnsupportedModel(f"{where} has a token of {longest} bytes; {LONGEST_PIECE} at most")


MAX_MERGED = 1 << 27
"""Squares of all tokens' lengths together: bytes of all merges, if every cut is one. A vocabulary
of 200,000 has 13 million."""


def lettered(ranks: dict[bytes, int], where: str) -> tuple[dict[str, int], list[str]]:
    """The vocabulary as byte-level BPE has it, a letter for each byte, and its merges: every way
    to cut a token into two tokens, those of the lowest rank first. tiktoken joins neighbours whose
    joined bytes have the lowest rank. Raises UnsupportedModel."""
    if (size := sum(len(token) ** 2 for token in ranks)) > MAX_MERGED:
        raise UnsupportedModel(
            f"{where} has tokens whose merges may take {size} bytes; {MAX_MERGED} at most"
        )
    letter = {byte: each for each, byte in byte_letters().items()}
    texts = {token: "".join(map(letter.__getitem__, token)) for token in ranks}
    merges = [
        f"{texts[token[:cut]]} {texts[token[cut:]]}"
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    return {texts[token]: rank for token, rank in ranks.items()}, merges
