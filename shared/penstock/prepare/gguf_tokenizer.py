"""tokenizer.json from the vocabulary in a GGUF file, made with the tokenizers library.

A decoder's BOS is not part of the post-processor: manifest.add_bos says whether it is added, and
`penstock.text.Tokenizer` adds it, in that one place. What an encoder's texts begin and end with is.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.prepare.gguf_tokenizer_bpe import SPACE_MARK, byte_level_bpe, marked_bpe, unknown_text
from penstock.prepare.gguf_vocabulary import (
    KEY,
    NORMAL,
    UNKNOWN,
    Built,
    Vocabulary,
    add_tokens,
    end_ids,
    frame,
    read_scores,
    read_vocabulary,
)
from penstock.prepare.tokenizer_bounds import check_character_table, check_pieces
from penstock.prepare.tokenizer_cost import check_nesting

# BERT's WordPiece. In GGUF files, tokens that begin a word have a mark in front and the others
# have none; in BERT's own vocabulary the others begin with `##`.

CONTINUED = "##"


def wordpiece(vocabulary: Vocabulary) -> Built:
    fields = vocabulary.fields
    names = [_name(token, kind) for token, kind in _typed(vocabulary)]
    ids = {name: i for i, name in enumerate(names) if name}
    unknown = vocabulary.special_id("unknown_token_id", texts=("[UNK]", "<unk>"))
    if unknown is None:
        raise UnsupportedModel(f"{fields.where}: there is no token for unknown words ([UNK])")
    lowercase = fields.flag(f"{KEY}normalizer.lowercase", True)
    accents = fields.flag(f"{KEY}normalizer.strip_accents", lowercase)
    tokenizer = wordpiece_tokenizer(ids, names[unknown], lowercase=lowercase, strip_accents=accents)
    return Built(tokenizer, add_bos=True, add_sep=True, pairs=True)


def wordpiece_tokenizer(
    ids: dict[str, int],
    unknown: str,
    *,
    lowercase: bool,
    strip_accents: bool,
    chinese: bool = True,
) -> Tokenizer:
    """unknown: the token of words that no others make.  chinese: whether each Chinese character
    is a word."""
    tokenizer = Tokenizer(
        models.WordPiece(
            ids,
            unk_token=unknown,
            continuing_subword_prefix=CONTINUED,
            max_input_chars_per_word=100,
        )
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUED)
    return tokenizer


def _typed(vocabulary: Vocabulary) -> list[tuple[str, int]]:
    return list(zip(vocabulary.tokens, vocabulary.types, strict=True))


def _name(token: str, kind: int) -> str:
    """BERT's own text of a token. Converters leave tokens in brackets as they are."""
    if token.startswith(SPACE_MARK):
        return token[len(SPACE_MARK) :]
    if kind != NORMAL or (token.startswith("[") and token.endswith("]")):
        return token
    return f"{CONTINUED}{token}"


def unigram(vocabulary: Vocabulary) -> Built:
    """Tokens with scores; text is normalised by the file's table of characters."""
    fields = vocabulary.fields
    scores = read_scores(vocabulary)
    unknown = vocabulary.special_id("unknown_token_id")
    if unknown is None:
        unknown = vocabulary.types.index(UNKNOWN) if UNKNOWN in vocabulary.types else None
    check_pieces(vocabulary.tokens, f"{fields.where}: {KEY}tokens", tree=True)
    check_nesting(vocabulary.tokens, f"{fields.where}: {KEY}tokens")
    pieces = list(zip(vocabulary.tokens, scores, strict=True))
    bytewise = fields.flag(f"{KEY}byte_fallback", False)
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=bytewise))
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
    spaces = decoders.Metaspace(SPACE_MARK, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if bytewise else spaces
    return Built(tokenizer, add_eos=True, add_sep=False)


def one_space_between_words() -> list[Any]:
    """Steps of a normaliser: none of a text's spaces is left at its ends, one between words."""
    return [
        normalizers.Replace(Regex(r"\A +| +\z"), ""),
        normalizers.Replace(Regex(" {2,}"), " "),
    ]


def _read_table(vocabulary: Vocabulary) -> bytes:
    where = f"{vocabulary.fields.where}: {KEY}precompiled_charsmap"
    try:
        raw = np.asarray(vocabulary.fields.listed(f"{KEY}precompiled_charsmap", int))
        content = raw.astype(np.uint8).tobytes()  # files have it as signed or unsigned bytes
    except (ValueError, OverflowError) as error:
        raise UnsupportedModel(f"{where} is broken: {error}") from None
    check_character_table(content, where)
    return content


# SentencePiece's BPE: spaces are marks, merges follow from scores, and what is not in the
# vocabulary falls back to byte tokens.


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
        steps[:0] = one_space_between_words()
    if f"{KEY}precompiled_charsmap" in fields:
        steps.insert(0, normalizers.Precompiled(_read_table(vocabulary)))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(spaces)
    return Built(tokenizer, add_bos=True)


_BUILDERS = {
    "gpt2": byte_level_bpe,
    "gemma4": marked_bpe,
    "llama": sentencepiece_bpe,
    "t5": unigram,
    "bert": wordpiece,
}
"""What builds a tokenizer, by `tokenizer.ggml.model`."""


def built(model: str, vocabulary: Vocabulary) -> Built:
    """The tokenizer of a vocabulary, by the name of its model in GGUF files."""
    return _BUILDERS[model](vocabulary)


class BuiltTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """json: tokenizer.json.  add_bos: whether plain prompts begin with BOS.
    end_ids: what ends an answer, end of text first."""

    json: bytes
    highest_id: int
    add_bos: bool
    bos_id: int | None
    end_ids: tuple[int, ...]


def build_tokenizer(file: GGUFFile, *, encoder: bool = False) -> BuiltTokenizer:
    """encoder: whether the model is one, so that special tokens around a text are the
    post-processor's.

    Raises UnsupportedModel if the vocabulary is broken or of a kind that isn't served.
    """
    fields = Fields(file.metadata, str(file.path))
    kind = fields.text(f"{KEY}model")
    if kind not in _BUILDERS:
        raise UnsupportedModel(
            f"{file.path}: the tokenizer model {kind!r} is not served; "
            "gpt2 (byte-level BPE), llama (SentencePiece BPE), gemma4 (BPE with marks for spaces), "
            "t5 (Unigram) and bert (WordPiece) are"
        )
    vocabulary = read_vocabulary(fields)
    try:
        built = _BUILDERS[kind](vocabulary)
        tokenizer = built.tokenizer
        add_tokens(tokenizer, vocabulary)
        _frame(tokenizer, vocabulary, built, encoder)
        text = tokenizer.to_str()
        Tokenizer.from_str(text)  # what it can't read itself is broken, too
    except UnsupportedModel:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics, which are not
        raise UnsupportedModel(f"{file.path}: the vocabulary is broken: {error}") from error
    return BuiltTokenizer(
        json=text.encode(),
        highest_id=max(vocabulary.ids.values()),
        add_bos=not encoder and fields.flag(f"{KEY}add_bos_token", built.add_bos),
        bos_id=vocabulary.special_id("bos_token_id"),
        end_ids=end_ids(vocabulary),
    )


def _frame(tokenizer: Tokenizer, vocabulary: Vocabulary, built: Built, encoder: bool) -> None:
    """An encoder's texts stand between its first and its last token. A decoder's end with EOS only
    if the file says so."""
    fields = vocabulary.fields
    first, last = None, None
    if encoder and fields.flag(f"{KEY}add_bos_token", built.add_bos or built.add_sep):
        first = vocabulary.special_id("cls_token_id", "bos_token_id", texts=("[CLS]", "<s>"))
    if encoder and fields.flag(f"{KEY}add_sep_token", built.add_sep):
        last = vocabulary.special_id(
            "seperator_token_id", "eos_token_id", texts=("[SEP]", "</s>")
        )  # the key is written like that
    elif fields.flag(f"{KEY}add_eos_token", built.add_eos):
        last = vocabulary.special_id("eos_token_id")
        if last is None:
            raise UnsupportedModel(
                f"{fields.where}: texts are to end with EOS ({KEY}add_eos_token), but "
                f"{KEY}eos_token_id is missing"
            )
    tokens = [None if each is None else vocabulary.tokens[each] for each in (first, last)]
    frame(tokenizer, tokens[0], tokens[1], pairs=built.pairs)


MAX_TOKEN_LENGTH = 512
"""Longer tokens are refused: their cuts would take quadratic time."""
MAX_CHARACTERS = 1 << 23
"""Most characters of all tokens together. A vocabulary of 262,144 tokens has some two million."""


def merges_from_scores(
    tokens: list[str | None], scores: list[float], where: str
) -> list[tuple[str, str]]:
    """Merges, best first.

    tokens: text by id; None for those that merges neither make nor use.  scores: one for each.

    BPE merges from SentencePiece's scores.

    SentencePiece joins, again and again, the neighbours whose joined text is the token with the
    best score (Kudo and Richardson, 2018, arXiv:1808.06226). A list of merges says the same when it
    is ordered by the joined token's score: every way to cut a token into two tokens is a merge, and
    merges of better tokens come first.
    """
    if sum(len(token) for token in tokens if token) > MAX_CHARACTERS:
        raise UnsupportedModel(
            f"{where}: the vocabulary's tokens have more than {MAX_CHARACTERS} characters together"
        )
    known = {token for token in tokens if token}
    order = sorted(
        (i for i, token in enumerate(tokens) if token and len(token) > 1),
        key=lambda i: (-scores[i], i),
    )
    merges: list[tuple[str, str]] = []
    for i in order:
        token = tokens[i]
        if token is None:
            continue
        if len(token) > MAX_TOKEN_LENGTH:
            raise UnsupportedModel(
                f"{where}: token {i} has {len(token)} characters; "
                f"at most {MAX_TOKEN_LENGTH} are allowed"
            )
        for cut in range(1, len(token)):
            left = token[:cut]
            if left in known and token[cut:] in known:
                merges.append((left, token[cut:]))
    return merges
