"""Models as gateways see them: their vocabularies, chat templates, and what they compute."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers

from penstock.model.pooling_config import PoolingConfig, SparseWeights
from penstock.model.prepared_model import GenerationDefaults
from penstock.prepare import prepare
from penstock.prepare.folder import TOKENIZER
from penstock.protocol.common import PoolingTask
from penstock.protocol.to_frontend import Limits, Welcome
from testing.scripted_engine import WELCOME

REPOSITORY = Path(__file__).parents[2]
TEMPLATES = REPOSITORY / "tests/shared/text/templates"
CONTEXT = 131_072
"""Tokens: what many models have today, so texts may be long."""
POOLING_CONTEXT = 8192
"""The same of models that make vectors."""
RELEASES = "PENSTOCK_RELEASES"


class ServedModel(NamedTuple):
    """What an engine core tells of its model."""

    welcome: Welcome
    frames: tuple[bytes, bytes]

    def ids(self, text: str) -> list[int]:
        found: list[int] = _tokenizer(self.frames[0]).encode(text, add_special_tokens=False).ids
        return found


@cache
def _tokenizer(vocabulary: bytes) -> Tokenizer:
    return Tokenizer.from_buffer(vocabulary)


@cache
def byte_level() -> bytes:
    """The default model's vocabulary: byte-level BPE."""
    return (prepare("smollm2-135m") / TOKENIZER).read_bytes()


@cache
def fills_in() -> bytes:
    """The same with tokens for what is missing in the middle of a text, as Qwen's coders have
    them."""
    tokenizer = Tokenizer.from_buffer(byte_level())
    names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer.to_str().encode()


@cache
def sentencepiece() -> bytes:
    """Gemma 3's vocabulary where the folder of releases has it, else a smaller one of the same
    kind: BPE without a splitter in front, spaces marked, bytes for what has no piece."""
    folder = os.environ.get(RELEASES)
    file = Path(folder or "/") / "tokenizers/gemma3/models/tokenizer.json"
    return file.read_bytes() if folder and file.exists() else _trained().to_str().encode()


@cache
def _trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        special_tokens=[*control, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
        max_token_length=16,
    )
    pages = sorted((REPOSITORY / "docs/guides").glob("*.md"))
    words = (line for page in pages for line in page.read_text(encoding="utf-8").split("\n"))
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in control])
    return tokenizer


def _template(name: str) -> bytes:
    return (TEMPLATES / f"{name}.jinja").read_bytes()


def _generating(vocabulary: bytes, template: str, family: str) -> ServedModel:
    size = _tokenizer(vocabulary).get_vocab_size()
    welcome = msgspec.structs.replace(
        WELCOME,
        model="m",
        digest=family,
        family=family,
        generation=GenerationDefaults(eos_token_ids=(1,), bos_token_id=2),
        limits=Limits(
            max_model_len=CONTEXT,
            vocab_size=size,
            max_waiting_requests=4096,
            max_num_seqs=256,
            max_grammar_bytes=262_144,
            grammar_kinds=(
                "json_schema",
                "json_object",
                "regex",
                "choice",
                "lark",
                "gbnf",
                "structural_tag",
            ),
        ),
    )
    return ServedModel(welcome, (vocabulary, _template(template)))


def _pooling(
    vocabulary: bytes, config: PoolingConfig, *tasks: PoolingTask, template: str = ""
) -> ServedModel:
    made = _generating(vocabulary, "llama3_1", "pooled")
    limits = msgspec.structs.replace(made.welcome.limits, max_model_len=POOLING_CONTEXT)
    welcome = msgspec.structs.replace(
        made.welcome, pooling=config, pooling_tasks=tasks, limits=limits
    )
    return ServedModel(welcome, (vocabulary, _template(template) if template else b""))


MODELS: dict[str, Callable[[], ServedModel]] = {
    "llama": lambda: _generating(byte_level(), "llama3_1", "llama"),
    "qwen": lambda: _generating(fills_in(), "qwen3", "qwen3"),
    "gemma": lambda: _generating(sentencepiece(), "gemma", "gemma3"),
    "vectors": lambda: _pooling(
        byte_level(),
        PoolingConfig(mode="mean", normalize=True, size=1024),
        "embed",
        "token_embed",
        template="llama3_1",
    ),
    "pairs": lambda: _pooling(
        byte_level(),
        PoolingConfig(mode="cls", normalize=False, size=1024, labels=("relevant",)),
        "classify",
        "token_classify",
    ),
    "sparse": lambda: _pooling(
        byte_level(),
        PoolingConfig(mode="cls", normalize=False, size=1024, sparse=SparseWeights(size=30_000)),
        "embed_sparse",
    ),
}
"""By the name of the engine core's socket: two that chat with a byte-level vocabulary, of which the
second also fills in, one with SentencePiece's, one that makes vectors, a cross-encoder, and one
that weighs words."""
