"""tokenizer.json from the files that a hub folder has instead: SentencePiece's, tiktoken's, tekken,
vocab.json with merges.txt, or vocab.txt.

They are read into the keys that GGUF files have for the same vocabularies, and built as those are.
Source of what each class of tokenizer adds: transformers' tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.small_file import read_small
from penstock.hub.selection import SLOW_TOKENIZERS
from penstock.prepare.added_tokens import (
    added_token,
    described,
    id_of,
    json_of,
    tokens_by_name,
)
from penstock.prepare.gguf_tokenizer import built, one_space_between_words, wordpiece_tokenizer
from penstock.prepare.gguf_tokenizer_bpe import SPACE_MARK, TEKKEN
from penstock.prepare.gguf_vocabulary import (
    CONTROL,
    KEY,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    frame,
    read_vocabulary,
)
from penstock.prepare.inputs import ADDED_TOKENS, SPECIAL_TOKENS
from penstock.prepare.sentencepiece_file import read_sentencepiece
from penstock.prepare.tiktoken_file import (
    is_tiktoken,
    lettered,
    read_tekken,
    read_tiktoken,
)
from penstock.text.token_table import HIGHEST_ID

MAX_FILE_BYTES = 64 << 20
MERGES = "merges.txt"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What a class of tokenizer does that its files don't say.

    pre: the pre-tokenizer, by its name in GGUF files.  named: its special tokens, where the
    settings don't name them.  first, last: which of them stand around a text; pairs: as `frame`
    has it.  add_bos: whether BOS is in front of a text unless the settings say otherwise.
    """

    pre: str = ""
    named: Mapping[str, str] = {}
    first: str = ""
    last: str = ""
    pairs: bool = False
    add_bos: bool = False
    folds: bool = False
    """Whether accents are taken off, and typists' quotes are one character."""
    lowercase: bool = False
    """Whether letters become small ones unless the settings say otherwise, of SentencePiece's
    vocabularies."""


_BERT = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}  # fmt: skip
_ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>",
    "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
_DEBERTA = {**_BERT, "bos_token": "[CLS]", "eos_token": "[SEP]"}
_END_OF_TEXT = {"eos_token": "<|endoftext|>"}
_LLAMA = Kind(add_bos=True, named={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
_GPT2 = Kind(pre="gpt-2", named={"bos_token": "<|endoftext|>", **_END_OF_TEXT})
_WORDS = Kind(named=_BERT, first="cls_token", last="sep_token", pairs=True)
_ROBERTA_KIND = Kind(pre="gpt-2", named=_ROBERTA, first="cls_token", last="sep_token")

SENTENCEPIECE = {
    "": Kind(add_bos=True),
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": _LLAMA,
    "InternLM2Tokenizer": _LLAMA,
    "BaichuanTokenizer": _LLAMA,
    "GemmaTokenizer": Kind(
        add_bos=True,
        named={
            "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
        },
    ),
    "DebertaV2Tokenizer": Kind(
        named=_DEBERTA, first="cls_token", last="sep_token", pairs=True
    ),
    "AlbertTokenizer": Kind(
        named={**_DEBERTA, "unk_token": "<unk>", "pad_token": "<pad>"},
        first="cls_token", last="sep_token", pairs=True, folds=True, lowercase=True,
    ),
}  # fmt: skip
TIKTOKEN = {
    "": Kind(pre="llama-bpe", add_bos=True),
    "TikTokenTokenizer": Kind(pre="kimi-k2"),
    "QWenTokenizer": Kind(pre="qwen2", named=_END_OF_TEXT),
    "ChatGLM4Tokenizer": Kind(pre="chatglm-bpe"),
}
BYTE_LEVEL = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "Qwen2Tokenizer": Kind(pre="qwen2", named=_END_OF_TEXT | {"pad_token": "<|endoftext|>"}),
    "RobertaTokenizer": _ROBERTA_KIND,
    "LongformerTokenizer": _ROBERTA_KIND,
    "BartTokenizer": _ROBERTA_KIND,
    # Without what stands around a text: a transcription writes it itself.
    "WhisperTokenizer": Kind(pre="gpt-2", named={**_GPT2.named, "pad_token": "<|endoftext|>"}),
}
WORDPIECE = {
    "BertTokenizer": _WORDS,
    "DistilBertTokenizer": _WORDS,
    "ElectraTokenizer": _WORDS,
    "MPNetTokenizer": Kind(
        named=_ROBERTA | {"unk_token": "[UNK]"}, first="cls_token", last="sep_token"
    ),
}
"""Kinds by the tokenizer's class; "": no class, or one that any tokenizer.json has."""
_ANY = ("PreTrainedTokenizer", "TokenizersBackend")
"""Classes, without `Fast` at their end, that say nothing about a tokenizer."""


class Raw(msgspec.Struct, kw_only=True):
    """A vocabulary as its file has it. keys: those of GGUF files, without tokens and types."""

    kind: Kind
    model: str
    tokens: list[str]
    types: list[int]
    keys: dict[str, Any] = {}
    named: Mapping[str, str] = {}


def convert_tokenizer(path: Path, settings: Fields) -> tuple[bytes, Fields] | None:
    """tokenizer.json, and the settings with the special tokens that they don't name; None for a
    folder without such files. settings: of tokenizer_config.json. Raises UnsupportedModel for a
    file that is broken, or of a class that isn't known here."""
    for pattern, read in _READERS.items():
        for file in sorted(path.glob(pattern)):
            return _converted(path, settings, read(file, settings), str(file))
    return None


def _converted(path: Path, settings: Fields, raw: Raw, where: str) -> tuple[bytes, Fields]:
    stated = tokens_by_name(settings, json_of(path / SPECIAL_TOKENS))
    named = {**raw.kind.named, **raw.named, **stated}
    none = {name for name, value in settings.values.items() if value is None}
    named = {name: text for name, text in named.items() if name not in none}
    added = _added(path, settings, raw, named)
    try:
        tokenizer = _build(raw, settings, added, where)
        _put_around(tokenizer, raw.kind, settings, named)
        return tokenizer.to_str().encode(), settings.replaced(named)
    except UnsupportedModel:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics, which are not
        raise UnsupportedModel(f"{where}: the vocabulary is broken: {error}") from error


def _kind(kinds: Mapping[str, Kind], settings: Fields, file: Path) -> Kind:
    name = settings.text("tokenizer_class", "").removesuffix("Fast")
    kind = kinds.get("" if name in _ANY else name)
    if kind is None:
        known = ", ".join(filter(None, kinds))
        raise UnsupportedModel(
            f"{file}: the folder has no tokenizer.json, and {name or 'no tokenizer_class'} in "
            f"{settings.where} is none that this file is converted for; {known} are. Save the "
            "tokenizer as tokenizer.json first"
        )
    return kind


# Readers of the files.


def _read_model(file: Path, settings: Fields) -> Raw:
    content = read_small(file, MAX_FILE_BYTES)
    if is_tiktoken(content):
        return _read_ranks(file, settings)
    found = read_sentencepiece(content, str(file))
    kind = _kind(SENTENCEPIECE, settings, file)
    keys: dict[str, Any] = {
        "scores": found.scores,
        "unknown_token_id": found.unknown,
        "byte_fallback": found.byte_fallback,
        "add_space_prefix": settings.flag("add_prefix_space", found.dummy_prefix),
        "remove_extra_whitespaces": found.trims and found.kind == "bpe",
        "trims": found.trims,
    }
    if found.character_table:
        keys["precompiled_charsmap"] = list(found.character_table)
    return Raw(
        kind=kind,
        model="llama" if found.kind == "bpe" else "t5",
        tokens=found.pieces,
        types=found.types,
        keys=keys,
        named=found.named,
    )


def _read_ranks(file: Path, settings: Fields) -> Raw:
    kind = _kind(TIKTOKEN, settings, file)
    ranks = read_tiktoken(read_small(file, MAX_FILE_BYTES), str(file))
    if "added_tokens_decoder" not in settings:
        raise UnsupportedModel(
            f"{settings.where} names no special tokens (added_tokens_decoder), which {file} lacks"
        )
    return _of_ranks(ranks, {}, kind, file)


def _read_tekken(file: Path, settings: Fields) -> Raw:
    found = read_tekken(read_small(file, MAX_FILE_BYTES), str(file))
    if found.pattern != TEKKEN:
        raise UnsupportedModel(f"{file}: its pattern of words is not the one that is known here")
    kind = Kind(pre="tekken", named={**_LLAMA.named, "pad_token": "<pad>"}, add_bos=True)
    return _of_ranks(found.ranks, found.special, kind, file)


def _of_ranks(ranks: dict[bytes, int], special: dict[int, str], kind: Kind, file: Path) -> Raw:
    ids, merges = lettered(ranks, str(file))
    tokens, types = _by_id(ids, str(file))
    for at, text in special.items():
        tokens[at], types[at] = text, CONTROL
    return Raw(kind=kind, model="gpt2", tokens=tokens, types=types, keys={"merges": merges})


def _read_bpe(file: Path, settings: Fields) -> Raw:
    kind = _kind(BYTE_LEVEL, settings, file)
    merges = file.parent / MERGES
    if not merges.is_file():
        raise UnsupportedModel(f"{file} needs a {MERGES} beside it")
    lines = read_small(merges, MAX_FILE_BYTES).decode("utf-8", "replace").split("\n")
    pairs = [line for line in lines if line.strip() and not line.startswith("#version")]
    tokens, types = _by_id(json_of(file), str(file))
    return Raw(kind=kind, model="gpt2", tokens=tokens, types=types, keys={"merges": pairs})


def _read_words(file: Path, settings: Fields) -> Raw:
    kind = _kind(WORDPIECE, settings, file)
    text = read_small(file, MAX_FILE_BYTES).decode("utf-8", "replace")
    lines = text.removesuffix("\n").split("\n")
    tokens, types = _by_id({line.rstrip("\r"): at for at, line in enumerate(lines)}, str(file))
    return Raw(kind=kind, model="bert", tokens=tokens, types=types)


def _by_id(ids: Mapping[str, Any], where: str) -> tuple[list[str], list[int]]:
    """Tokens and types in the order of ids; those that are missing are unused."""
    if not all(isinstance(each, int) and 0 <= each <= HIGHEST_ID for each in ids.values()):
        raise UnsupportedModel(f"{where} has an id outside of 0 to {HIGHEST_ID}")
    tokens = [f"[PAD{at}]" for at in range(max(ids.values(), default=-1) + 1)]
    types = [UNUSED] * len(tokens)
    for text, at in ids.items():
        tokens[at], types[at] = text, NORMAL
    return tokens, types


_READERS: Mapping[str, Callable[[Path, Fields], Raw]] = dict(
    zip(
        SLOW_TOKENIZERS,
        (
            *(_read_tekken, _read_ranks, _read_ranks, _read_model),
            *(_read_model, _read_model, _read_bpe, _read_words),
        ),
        strict=True,
    )
)


def _added(
    path: Path, settings: Fields, raw: Raw, named: Mapping[str, str]
) -> list[tuple[int, AddedToken]]:
    """Tokens that are found in text before it is split, in the order of their ids. Puts those
    that are new into the vocabulary, and gives all their types."""
    special = set(named.values())
    found: dict[int, AddedToken] = {}
    for at, each in enumerate(raw.types):
        if each in (CONTROL, USER_DEFINED, UNKNOWN):
            ours = each != USER_DEFINED
            found[at] = added_token(raw.tokens[at], str(path), normalized=False, special=ours)
    for text, at in json_of(path / ADDED_TOKENS).items():
        found[id_of(at, ADDED_TOKENS)] = added_token(
            text, ADDED_TOKENS, normalized=text not in special, special=text in special
        )
    stated = settings.section("added_tokens_decoder")
    for key in stated.values:
        found[id_of(key, stated.where)] = described(stated.section(key))
    known = {each.content for each in found.values()}
    ids = {text: at for at, text in enumerate(raw.tokens) if raw.types[at] != UNUSED}
    end = max(len(raw.tokens), max(found, default=-1) + 1)
    for text in dict.fromkeys(named.values()):
        if text not in known:
            at = ids.get(text, end)
            end += at == end
            found[at] = added_token(text, settings.where, normalized=False, special=True)
    for at in range(len(raw.tokens), end):
        raw.tokens.append(f"[PAD{at}]")
        raw.types.append(UNUSED)
    for at, token in found.items():
        raw.tokens[at] = token.content
        raw.types[at] = CONTROL if token.special else USER_DEFINED
    return sorted(found.items())


# The tokenizer.


def _build(
    raw: Raw, settings: Fields, added: list[tuple[int, AddedToken]], where: str
) -> Tokenizer:
    keys = {"tokens": raw.tokens, "token_type": raw.types, "pre": raw.kind.pre, **raw.keys}
    scores: list[float] = raw.keys.get("scores", [])
    keys["scores"] = [*scores, *[0.0] * (len(raw.tokens) - len(scores))]
    fields = Fields({f"{KEY}{name}": value for name, value in keys.items()}, where)
    vocabulary = read_vocabulary(fields)
    if raw.model == "bert":
        lowercase = settings.flag("do_lower_case", True)
        accents = settings.values.get("strip_accents")
        tokenizer = wordpiece_tokenizer(
            vocabulary.ids,
            tokens_by_name(settings, {}).get("unk_token", raw.kind.named["unk_token"]),
            lowercase=lowercase,
            strip_accents=lowercase if accents is None else settings.flag("strip_accents"),
            chinese=settings.flag("tokenize_chinese_chars", True),
        )
    else:
        tokenizer = built(raw.model, vocabulary).tokenizer
    if raw.model == "gpt2" and settings.flag("add_prefix_space", False):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    if raw.model == "t5" and raw.keys["trims"]:
        # The builder parts words at any white space, as transformers does for encoders.
        steps: Any = tokenizer.normalizer or []
        tokenizer.normalizer = normalizers.Sequence([*steps, *one_space_between_words()])
    if raw.model == "t5":
        _fold(tokenizer, raw.kind, settings)
    if raw.model == "llama" and raw.keys["add_space_prefix"] and not settings.flag("legacy", True):
        _mark_beginning(tokenizer)
    tokenizer.add_tokens([token for _, token in added])
    return tokenizer


def _fold(tokenizer: Tokenizer, kind: Kind, settings: Fields) -> None:
    """Puts what a class does to a text before its model does: ALBERT's, and DeBERTa's if it is to
    know small letters only."""
    steps: list[Any] = []
    if kind.folds:
        steps += [normalizers.Replace(quotes, '"') for quotes in ("``", "''")]
        if not settings.flag("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.flag("do_lower_case", kind.lowercase):
        steps.append(normalizers.Lowercase())
    if steps:
        own = tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([*steps, *([] if own is None else [own])])


def _mark_beginning(tokenizer: Tokenizer) -> None:
    """Only the first words of a text get a space in front, not those after a special token."""
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARK, "first", split=False)
    steps: Any = tokenizer.normalizer
    kept = [step for step in steps if not isinstance(step, normalizers.Prepend)]
    tokenizer.normalizer = normalizers.Sequence(kept)


def _put_around(
    tokenizer: Tokenizer, kind: Kind, settings: Fields, named: Mapping[str, str]
) -> None:
    bos = settings.flag("add_bos_token", kind.add_bos)
    eos = settings.flag("add_eos_token", False)
    first = named.get(kind.first) if kind.first else named.get("bos_token") if bos else None
    last = named.get(kind.last) if kind.last else named.get("eos_token") if eos else None
    frame(tokenizer, first, last, pairs=kind.pairs)
