"""Small models, made in milliseconds: GGUF files and hub folders with real tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokenizers import processors, trainers  # isort: skip

CORPUS = (
    "The quick brown fox jumps over the lazy dog. It's 12:30, isn't it? They've paid 1,234 euros.",
    "def add(a, b):\n    return a + b  # sums\n\n\nfor i in range(10):\n\tprint(i)\n",
    "Zażółć gęślą jaźń. Ein Fuß, zwei Füße. Les élèves ont été très occupés à l'école.",
    "東京は日本の首都です。 Привет, мир! Καλημέρα κόσμε. नमस्ते दुनिया 👍🏽 👩‍👩‍👧",
)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@cache
def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE with ChatML's control tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


@cache
def sentencepiece_tokenizer(*, prepend_scheme: str = "") -> Tokenizer:
    """SentencePiece-like BPE with byte fallback, as Llama 2 has it.

    prepend_scheme: "" for the older normaliser, else the scheme of the newer Metaspace.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
        limit_alphabet=60,
    )
    tokenizer.train_from_iterator(CORPUS[:3] * 3, trainer)
    described = json.loads(tokenizer.to_str())
    # The byte tokens were only reserved by the trainer: text never holds them.
    described["added_tokens"] = described["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(described))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    if prepend_scheme:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme, split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.pre_tokenizer = None  # type: ignore[assignment]
    return tokenizer


def with_bos(tokenizer: Tokenizer, bos: str) -> Tokenizer:
    """A copy whose post-processor puts BOS in front."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    token = copy.token_to_id(bos)
    copy.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, token)]
    )
    return copy


def tokens_by_id(tokenizer: Tokenizer) -> list[str]:
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return sorted(ids, key=lambda text: ids[text])


def _shapes(vocab: int, heads: int, kv_heads: int, head_dim: int) -> Iterator[tuple[str, tuple]]:
    hidden = heads * head_dim
    yield "token_embd.weight", (vocab, hidden)
    yield "output_norm.weight", (hidden,)
    yield "blk.0.attn_norm.weight", (hidden,)
    yield "blk.0.ffn_norm.weight", (hidden,)
    yield "blk.0.attn_q.weight", (hidden, hidden)
    yield "blk.0.attn_k.weight", (kv_heads * head_dim, hidden)
    yield "blk.0.attn_v.weight", (kv_heads * head_dim, hidden)
    yield "blk.0.attn_output.weight", (hidden, hidden)
    for name in ("gate", "up"):
        yield f"blk.0.ffn_{name}.weight", (2 * hidden, hidden)
    yield "blk.0.ffn_down.weight", (hidden, 2 * hidden)


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    adjust: Callable[[gguf.GGUFWriter], None] | None = None,
    without: tuple[str, ...] = (),
    tensors: dict[str, np.ndarray] | None = None,
    vocabulary: Callable[[gguf.GGUFWriter], int] | None = None,
    heads: int = 3,
    kv_heads: int = 1,
    head_dim: int = 8,
    tensors_a_part: int = 0,
    seed: int = 0,
) -> Path:
    """One layer. head_dim: of 8, the CPU kernels can't compute it.  `adjust` adds metadata,
    `without` leaves some keys out.  seed: of the weights.  tensors_a_part: 0 for one file; else the
    file is split, and the first part's path returned."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_a_part)
    hidden = heads * head_dim
    settings: dict[str, Callable[[], None]] = {
        "block_count": lambda: writer.add_block_count(1),
        "context_length": lambda: writer.add_context_length(128),
        "embedding_length": lambda: writer.add_embedding_length(hidden),
        "feed_forward_length": lambda: writer.add_feed_forward_length(2 * hidden),
        "head_count": lambda: writer.add_head_count(heads),
        "head_count_kv": lambda: writer.add_head_count_kv(kv_heads),
        "rms_epsilon": lambda: writer.add_layer_norm_rms_eps(1e-5),
    }
    for key, add in settings.items():
        if key not in without:
            add()
    vocab = (vocabulary or add_byte_level_vocabulary)(writer)
    if adjust is not None:
        adjust(writer)
    rng = np.random.default_rng(seed)
    for name, shape in _shapes(vocab, heads, kv_heads, head_dim):
        if name not in without:
            writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(path.parent.glob(f"{path.stem}-00001-of-*")) if tensors_a_part else path


def add_byte_level_vocabulary(writer: gguf.GGUFWriter, pre: str = "gpt-2") -> int:
    tokenizer = byte_level_tokenizer()
    tokens = tokens_by_id(tokenizer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL_TOKENS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    return len(tokens)


def add_sentencepiece_vocabulary(writer: gguf.GGUFWriter) -> int:
    """Scores are the negative rank of the merge that makes a token, as SentencePiece has them."""
    tokenizer = sentencepiece_tokenizer()
    tokens = tokens_by_id(tokenizer)
    types = {"<unk>": 2, "<s>": 3, "</s>": 3}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    rank = {"".join(merge): -float(i) for i, merge in reversed(list(enumerate(merges)))}
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([types.get(t, 6 if t.startswith("<0x") else 1) for t in tokens])
    writer.add_token_scores([rank.get(token, -1e6) for token in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return len(tokens)


LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 700,
    "hidden_size": 24,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def write_hub_folder(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    tokenizer: Tokenizer | None = None,
    tokenizer_config: dict[str, Any] | None = None,
    generation_config: dict[str, Any] | None = None,
    dtype: Any = np.float32,
) -> Path:
    """A folder whose only tensor is the embedding: prepare reads no more of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    stated = LLAMA_CONFIG if config is None else config
    (folder / "config.json").write_text(json.dumps(stated))
    (folder / "tokenizer.json").write_text((tokenizer or byte_level_tokenizer()).to_str())
    if tokenizer_config is None:
        tokenizer_config = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    save_file(
        {"model.embed_tokens.weight": np.zeros((700, 24), dtype)}, folder / "model.safetensors"
    )
    return folder


def added(text: str, **settings: bool) -> AddedToken:
    return AddedToken(text, special=True, normalized=False, **settings)
