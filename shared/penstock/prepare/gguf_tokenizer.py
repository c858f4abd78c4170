"""tokenizer.json from the vocabulary in a GGUF file, made with the tokenizers library.

A decoder's BOS is not part of the post-processor: manifest.add_bos says whether it is added, and
`penstock.text.Tokenizer` adds it, in that one place. What an encoder's texts begin and end with is.
"""

from __future__ import annotations

import msgspec
from tokenizers import Tokenizer

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.prepare.gguf_tokenizer_bpe import byte_level_bpe, marked_bpe
from penstock.prepare.gguf_tokenizer_kinds import Built
from penstock.prepare.gguf_tokenizer_spm import sentencepiece_bpe
from penstock.prepare.gguf_tokenizer_unigram import unigram
from penstock.prepare.gguf_tokenizer_wordpiece import wordpiece
from penstock.prepare.gguf_vocabulary import (
    KEY,
    Vocabulary,
    add_tokens,
    end_ids,
    frame,
    read_vocabulary,
)

_BUILDERS = {
    "gpt2": byte_level_bpe,
    "gemma4": marked_bpe,
    "llama": sentencepiece_bpe,
    "t5": unigram,
    "bert": wordpiece,
}
"""What builds a tokenizer, by `tokenizer.ggml.model`."""


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
