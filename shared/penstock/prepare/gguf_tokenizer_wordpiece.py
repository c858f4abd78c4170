"""BERT's WordPiece. In GGUF files, tokens that begin a word have a mark in front and the others
have none; in BERT's own vocabulary the others begin with `##`."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from penstock.errors import UnsupportedModel
from penstock.prepare.gguf_tokenizer_bpe import SPACE_MARK
from penstock.prepare.gguf_tokenizer_kinds import Built
from penstock.prepare.gguf_vocabulary import KEY, NORMAL, Vocabulary

CONTINUED = "##"


def wordpiece(vocabulary: Vocabulary) -> Built:
    fields = vocabulary.fields
    names = [_name(token, kind) for token, kind in _typed(vocabulary)]
    ids = {name: i for i, name in enumerate(names) if name}
    unknown = vocabulary.special_id("unknown_token_id", texts=("[UNK]", "<unk>"))
    if unknown is None:
        raise UnsupportedModel(f"{fields.where}: there is no token for unknown words ([UNK])")
    tokenizer = Tokenizer(
        models.WordPiece(
            ids,
            unk_token=names[unknown],
            continuing_subword_prefix=CONTINUED,
            max_input_chars_per_word=100,
        )
    )
    lowercase = fields.flag(f"{KEY}normalizer.lowercase", True)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=fields.flag(f"{KEY}normalizer.strip_accents", lowercase),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUED)
    return Built(tokenizer, add_bos=True, add_sep=True, pairs=True)


def _typed(vocabulary: Vocabulary) -> list[tuple[str, int]]:
    return list(zip(vocabulary.tokens, vocabulary.types, strict=True))


def _name(token: str, kind: int) -> str:
    """BERT's own text of a token. Converters leave tokens in brackets as they are."""
    if token.startswith(SPACE_MARK):
        return token[len(SPACE_MARK) :]
    if kind != NORMAL or (token.startswith("[") and token.endswith("]")):
        return token
    return f"{CONTINUED}{token}"
