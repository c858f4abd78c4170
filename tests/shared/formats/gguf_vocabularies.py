"""Vocabularies of every kind: as transformers has them, and as a GGUF file holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from penstock.formats.gguf import GGUFFile
from penstock.prepare.gguf_tokenizer import BuiltTokenizer, build_tokenizer
from testing.tiny_models import CORPUS, byte_level_tokenizer, tokens_by_id

TEXTS = (
    *CORPUS,
    "",
    " ",
    "   leading and trailing   ",
    "tabs\tand\n\nlines\r\n  indented\n\n\n",
    "0 1 12 123 1234 12345 1,234.56 ½ Ⅷ ٣٤ ３",
    "don't WON'T they'Re I'D 'tis l'été",
    "e\u0301 é ﬁ ａｂｃ Å Å ǆ \u00ad \u200b \u2028 \u3000 \x85",
    "👍🏽👩‍👩‍👧 🇵🇱 ❤️ ☃ 𝔘𝔫𝔦 𐐷",
    "def f(x):\n\treturn x**2 != y  # <!-- html --> `q`",
    "camelCaseWords HTTPServer ABCdef x_y-z a/b\\c {}[]()<>",
    "한국어 텍스트 中文文本，标点。 ภาษาไทย हिन्दी עברית العربية",
    "#hashtag @user https://example.org/?q=1&r=2",
)


def written(path: Path, add: Callable[[gguf.GGUFWriter], None]) -> Path:
    """A file of a vocabulary and nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def built(path: Path, *, encoder: bool = False) -> tuple[Tokenizer, BuiltTokenizer]:
    found = build_tokenizer(GGUFFile(path), encoder=encoder)
    return Tokenizer.from_str(found.json.decode()), found


class Case:
    """theirs: transformers' tokenizer.  add: writes its vocabulary."""

    def __init__(
        self, theirs: Any, add: Callable[[gguf.GGUFWriter], None], *, encoder: bool = False
    ) -> None:
        self.theirs, self.add, self.encoder = theirs, add, encoder


def _byte_level(kind: type, pre: str, **options: Any) -> Case:
    original = json.loads(byte_level_tokenizer().to_str())["model"]
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "unk_token": None}
    theirs = kind(
        vocab=original["vocab"],
        merges=[tuple(merge) for merge in original["merges"]],
        **special | {"pad_token": "<|endoftext|>"} | options,
    )

    def add(writer: gguf.GGUFWriter) -> None:
        tokens = tokens_by_id(byte_level_tokenizer())
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
        writer.add_token_merges([" ".join(merge) for merge in original["merges"]])
        writer.add_eos_token_id(2)

    return Case(theirs, add)


@cache
def _wordpiece_vocabulary() -> list[str]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        show_progress=False,
        limit_alphabet=80,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokens_by_id(tokenizer)


def _wordpiece(*, lowercase: bool) -> Case:
    tokens = _wordpiece_vocabulary()
    vocabulary = {token: i for i, token in enumerate(tokens)}
    theirs = transformers.BertTokenizer(vocab=vocabulary, do_lower_case=lowercase)

    def add(writer: gguf.GGUFWriter) -> None:
        """Converters move the mark from what continues a word to what begins one."""
        special = [token.startswith("[") and token.endswith("]") for token in tokens]
        marked = [
            token if control else token[2:] if token.startswith("##") else f"▁{token}"
            for token, control in zip(tokens, special, strict=True)
        ]
        writer.add_tokenizer_model("bert")
        writer.add_token_list(marked)
        writer.add_token_types([3 if control else 1 for control in special])
        writer.add_unk_token_id(1)
        writer.add_sep_token_id(3)
        writer.add_uint32("tokenizer.ggml.cls_token_id", 2)
        if not lowercase:
            writer.add_bool("tokenizer.ggml.normalizer.lowercase", False)

    return Case(theirs, add, encoder=True)


@cache
def _unigram_pieces() -> list[tuple[str, float]]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS[:3] * 3, trainer)
    return [tuple(piece) for piece in json.loads(tokenizer.to_str())["model"]["vocab"]]


def table_of_characters() -> bytes:
    """SentencePiece's table for four texts, built slowly: 256 units of its own for each node."""
    replaced = {"ﬁ": "fi", "ａ": "a", "\u3000": " ", "½": "1⁄2"}
    texts = b"\0".join(text.encode() for text in replaced.values()) + b"\0"
    starts, at = {}, 0
    for key, text in replaced.items():
        starts[key.encode()] = at
        at += len(text.encode()) + 1
    prefixes = sorted({key[:n] for key in starts for n in range(len(key) + 1)})
    block = {prefix: 256 * (1 + i) for i, prefix in enumerate(prefixes)}
    units = [0x3FF] * (256 * (1 + len(prefixes)))
    place = {b"": 0}
    for prefix in prefixes[1:]:
        place[prefix] = block[prefix[:-1]] ^ prefix[-1]
    for prefix in prefixes:
        leaf = prefix in starts
        label = prefix[-1] if prefix else 0
        units[place[prefix]] = (place[prefix] ^ block[prefix]) << 10 | leaf << 8 | label
        if leaf:
            units[block[prefix]] = starts[prefix] | 1 << 31
    array = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(array).to_bytes(4, "little") + array + texts


def _unigram(kind: type, *, table: bool, encoder: bool) -> Case:
    pieces = _unigram_pieces()
    if not encoder:  # T5's unknown token is the third
        pieces = [pieces[1], pieces[2], pieces[3], pieces[0], *pieces[4:]]
    tokens = [token for token, _ in pieces]
    options = {"_spm_precompiled_charsmap": table_of_characters()} if table else {}
    theirs = kind(vocab=pieces, extra_ids=0, **options) if not encoder else kind(
        vocab=pieces, **options)  # fmt: skip

    def add(writer: gguf.GGUFWriter) -> None:
        types = {"<unk>": 2, "<s>": 3, "</s>": 3, "<pad>": 3}
        writer.add_tokenizer_model("t5")
        writer.add_token_list(tokens)
        writer.add_token_types([types.get(token, 1) for token in tokens])
        writer.add_token_scores([score for _, score in pieces])
        writer.add_bos_token_id(tokens.index("<s>"))
        writer.add_eos_token_id(tokens.index("</s>"))
        writer.add_unk_token_id(tokens.index("<unk>"))
        writer.add_remove_extra_whitespaces(True)
        writer.add_add_bos_token(encoder)
        writer.add_add_eos_token(True)
        if table:
            writer.add_precompiled_charsmap(table_of_characters())

    return Case(theirs, add, encoder=encoder)


def _gemma4() -> Case:
    """BPE with merges over text with marks for spaces, and byte tokens."""
    alphabet = sorted({char for text in CORPUS for char in text.replace(" ", "▁")})
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[
            *("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"),
            *(f"<0x{byte:02X}>" for byte in range(256)),
        ],
        initial_alphabet=alphabet,
        show_progress=False,
        max_token_length=8,
    )
    lines = [line for text in CORPUS for line in text.split("\n")]
    tokenizer.train_from_iterator(lines * 3, trainer)
    original = json.loads(tokenizer.to_str())["model"]
    theirs = transformers.GemmaTokenizer(
        vocab=original["vocab"], merges=[tuple(merge) for merge in original["merges"]]
    )

    def add(writer: gguf.GGUFWriter) -> None:
        tokens = sorted(original["vocab"], key=original["vocab"].__getitem__)
        types = [3 if i < 5 else 6 if i < 261 else 1 for i in range(len(tokens))]
        writer.add_tokenizer_model("gemma4")
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges([" ".join(merge) for merge in original["merges"]])
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        writer.add_unk_token_id(3)

    return Case(theirs, add)


CASES: dict[str, Callable[[], Case]] = {
    "gpt-2": lambda: _byte_level(transformers.GPT2Tokenizer, "gpt-2"),
    "qwen2": lambda: _byte_level(transformers.Qwen2Tokenizer, "qwen2"),
    "qwen35": lambda: _byte_level(transformers.models.qwen3_5.Qwen3_5Tokenizer, "qwen35"),
    "command-r": lambda: _byte_level(transformers.CohereTokenizer, "command-r"),
    "olmo": lambda: _byte_level(transformers.GPTNeoXTokenizer, "olmo"),
    "mpt": lambda: _byte_level(transformers.GPTNeoXTokenizer, "mpt"),
    "gemma4": _gemma4,
    "WordPiece": lambda: _wordpiece(lowercase=True),
    "WordPiece with case": lambda: _wordpiece(lowercase=False),
    "Unigram": lambda: _unigram(transformers.T5Tokenizer, table=False, encoder=False),
    "Unigram with a table": lambda: _unigram(transformers.T5Tokenizer, table=True, encoder=False),
    "Unigram of an encoder": lambda: _unigram(
        transformers.XLMRobertaTokenizer, table=True, encoder=True
    ),
}
