"""A decoder-only transformer of one sequence in float64, from the definitions, without a cache; and
the same weights packed for the kernels."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from penstock_kernels.cpu.decoder import Decoder, DecoderShape, LayerWeights
from penstock_kernels.cpu.matrix import SOURCES, MatrixKind, PackedMatrix
from tests.kernels.cpu import slow
from tests.kernels.cpu.sources import Source, random_source

KEY_SPLIT = 256

MATRICES = ("query", "key", "value", "output", "gate", "up", "down")


@dataclass(frozen=True)
class Sizes:
    """Of a random model. format: of all matrices, packed as `kind` where that is a plain one's."""

    hidden: int = 60
    inner: int = 90
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 77
    layers: int = 2
    format: str = "F32"
    kind: MatrixKind | None = None
    qk_norm: bool = False
    bias: bool = False
    positions: int = 64
    cache: str = "float32"
    seed: int = 0

    def of(self, matrix: str) -> tuple[int, int]:
        """(outputs, inputs)."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "query": (queries, self.hidden),
            "key": (keys, self.hidden),
            "value": (keys, self.hidden),
            "output": (self.hidden, queries),
            "gate": (self.inner, self.hidden),
            "up": (self.inner, self.hidden),
            "down": (self.hidden, self.inner),
            "embedding": (self.vocab, self.hidden),
            "head": (self.vocab, self.hidden),
        }[matrix]


@dataclass(frozen=True)
class SlowMatrix:
    source: Source
    kind: MatrixKind | None
    bias: np.ndarray | None = None

    @cached_property
    def values(self) -> np.ndarray:
        return slow.weights_as(self.source, self.kind)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        given = slow.input_as(x.astype(np.float32), self.kind or SOURCES[self.source.format].kind)
        return given @ self.values.T + (0 if self.bias is None else self.bias)

    def packed(self) -> PackedMatrix:
        return self.source.packed(kind=self.kind, bias=self.bias)


@dataclass
class SlowLayer:
    matrices: dict[str, SlowMatrix]
    norms: dict[str, np.ndarray] = field(default_factory=dict)


class SlowDecoder:
    """Random weights of `sizes`, large enough for clear-cut logits."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._rng = np.random.default_rng(sizes.seed)
        self.layers = [self._layer() for _ in range(sizes.layers)]
        self.embedding, self.head = self._matrix("embedding"), self._matrix("head")
        self.norm = self._vector(sizes.hidden)
        half = sizes.head_dim // 2
        angles = np.outer(np.arange(sizes.positions), 100.0 ** (-np.arange(half) / half))
        self.cosines = np.cos(angles).astype(np.float32)
        self.sines = np.sin(angles).astype(np.float32)

    def _layer(self) -> SlowLayer:
        sizes = self.sizes
        norms = {
            "attention_norm": self._vector(sizes.hidden),
            "feed_forward_norm": self._vector(sizes.hidden),
        }
        if sizes.qk_norm:
            norms["query_norm"] = self._vector(sizes.head_dim)
            norms["key_norm"] = self._vector(sizes.head_dim)
        return SlowLayer({name: self._matrix(name) for name in MATRICES}, norms)

    def _vector(self, size: int) -> np.ndarray:
        return (1 + self._rng.standard_normal(size) / 4).astype(np.float32)

    def _matrix(self, name: str) -> SlowMatrix:
        sizes = self.sizes
        outputs, inputs = sizes.of(name)
        seed = int(self._rng.integers(1 << 30))
        source = random_source(sizes.format, outputs, inputs, seed)
        if sizes.format in ("F32", "BF16"):
            source = _scaled(source, 2.5 / inputs**0.5)
        bias = None
        if sizes.bias and name in ("query", "key", "value"):
            bias = self._rng.standard_normal(outputs).astype(np.float32)
        return SlowMatrix(source, sizes.kind, bias)

    # ---- the model, slowly

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Of every position. [tokens, vocab] float64."""
        x = self.embedding.values[tokens]
        for layer in self.layers:
            x = x + self._attention(layer, self._normalise(x, layer.norms["attention_norm"]))
            x = x + self._feed_forward(layer, self._normalise(x, layer.norms["feed_forward_norm"]))
        return self.head(self._normalise(x, self.norm))

    def _normalise(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def _attention(self, layer: SlowLayer, x: np.ndarray) -> np.ndarray:
        sizes, count = self.sizes, len(x)
        query, key, value = (
            layer.matrices[name](x).reshape(count, -1, sizes.head_dim)
            for name in ("query", "key", "value")
        )
        if sizes.qk_norm:
            query = self._normalise(query, layer.norms["query_norm"])
            key = self._normalise(key, layer.norms["key_norm"])
        query, key = self._rotate(query), self._rotate(key)
        if sizes.cache != "float32":
            query = slow.bfloat16(query)
        group = sizes.heads // sizes.kv_heads
        key, value = key.repeat(group, 1), value.repeat(group, 1)
        levels, scales = self._stored(key)
        scores = np.einsum("qhd,khd->hqk", query, levels * scales) / sizes.head_dim**0.5
        scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        mixed = self._mix(scores, *self._stored(value)).reshape(count, -1)
        return layer.matrices["output"](mixed)

    def _stored(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the cache holds of [tokens, heads, dim]: levels and their scales [.., 1]."""
        if self.sizes.cache == "int8":
            return slow.int8_heads(rows)
        rounded = slow.bfloat16(rows) if self.sizes.cache == "bfloat16" else rows
        return rounded, np.ones((*rows.shape[:2], 1))

    def _mix(self, scores: np.ndarray, levels: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """[heads, queries, keys] and values -> [queries, heads, dim].

        But in float32 the weights, times their value's scale, are rounded to bfloat16, each
        relative to its split's peak.  The sum is of rounded weights where there are no scales.
        """
        top = scores.max(-1, keepdims=True)
        total, mixed = np.zeros_like(top), 0.0
        for start in range(0, scores.shape[-1], KEY_SPLIT):
            some = slice(start, start + KEY_SPLIT)
            peak = np.maximum(scores[..., some].max(-1, keepdims=True), -1e30)
            weights = np.exp(scores[..., some] - peak)
            used = weights * scales[some].transpose(1, 2, 0)
            if self.sizes.cache != "float32":
                used = slow.bfloat16(used)
            share = np.exp(peak - top)
            summed = weights if self.sizes.cache == "int8" else used
            total += summed.sum(-1, keepdims=True) * share
            mixed = mixed + np.einsum("hqk,khd->hqd", used * share, levels[some])
        return (mixed / total).transpose(1, 0, 2)

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, -1)
        cos, sin = (table[: len(x), None] for table in (self.cosines, self.sines))
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)

    def _feed_forward(self, layer: SlowLayer, x: np.ndarray) -> np.ndarray:
        gate, up = layer.matrices["gate"](x), layer.matrices["up"](x)
        return layer.matrices["down"](gate / (1 + np.exp(-gate)) * up)

    # ---- the same for the kernels

    def packed(self, *, block_size: int = 16, num_blocks: int, threads: int = 1) -> Decoder:
        sizes = self.sizes
        return Decoder(
            shape=DecoderShape(
                hidden=sizes.hidden,
                inner=sizes.inner,
                heads=sizes.heads,
                kv_heads=sizes.kv_heads,
                head_dim=sizes.head_dim,
                vocab=sizes.vocab,
                block_size=block_size,
                eps=1e-5,
            ),
            layers=[
                LayerWeights(
                    **{name: matrix.packed() for name, matrix in layer.matrices.items()},
                    **layer.norms,
                )
                for layer in self.layers
            ],
            embedding=self.embedding.packed(),
            head=self.head.packed(),
            norm=self.norm,
            cosines=self.cosines,
            sines=self.sines,
            num_blocks=num_blocks,
            cache=sizes.cache,
            threads=threads,
        )


def _scaled(source: Source, by: float) -> Source:
    values = source.values * np.float32(by)
    if source.format == "F32":
        return dataclasses.replace(source, data=values.reshape(-1).view(np.uint8), values=values)
    rounded = slow.bfloat16(values)
    data = (rounded.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return dataclasses.replace(source, data=data.reshape(-1).view(np.uint8), values=rounded)
