"""A decoder-only transformer of one sequence in float64, from the definitions, without a cache; and
the same weights packed for the kernels."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Self

import numpy as np

from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec, NormSpec
from penstock.model.rope_spec import RopeSpec
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.matrix import MatrixKind
from penstock_kernels.cpu.operands import NormWeights, RotationTable
from penstock_worker.forward.cpu.program import compile_program
from penstock_worker.forward.cpu.weights import LayerWeights, ModelWeights
from penstock_worker.layers.feed_forward import coefficients
from tests.kernels.cpu import slow
from tests.kernels.cpu.slow_layer import (
    SlowLayer,
    SlowMatrix,
    expert_shares,
    feed_forward,
    normalise,
)
from tests.kernels.cpu.sources import Source, random_source

KEY_SPLIT = 256

MATRICES = ("query", "key", "value", "output", "gate", "up", "down")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a random model. format: of all matrices, packed as `kind` where that is a plain
    one's."""

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
    two_parts: bool = False
    """Whether inputs of products have two parts, as in Decoder."""
    seed: int = 0
    specs: tuple[LayerSpec, ...] = ()
    """One for all layers, or one for each; none: Llama's, with qk_norm and bias."""
    norm: NormSpec = NormSpec(eps=1e-5)  # noqa: RUF009 (it is frozen)
    rotations: tuple[int | None, ...] = (None,)
    """How many numbers of a head rotate; None: all."""
    query_growth: float = 0.0
    """The growth of queries, as RopeSpec has it, each 8 positions."""
    embedding_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    logits_soft_cap: float | None = None

    def of(self, matrix: str, rule: AttentionSpec) -> tuple[int, int]:
        """(outputs, inputs). rule: of the layer."""
        heads = rule.query_heads or self.heads
        queries, keys = heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "query": (queries, self.hidden),
            "output_gate": (heads if rule.head_gate else queries, self.hidden),
            "key": (keys, self.hidden),
            "value": (keys, self.hidden),
            "output": (self.hidden, queries),
            "gate": (self.inner, self.hidden),
            "up": (self.inner, self.hidden),
            "down": (self.hidden, self.inner),
            "embedding": (self.vocab, self.hidden),
            "head": (self.vocab, self.hidden),
        }[matrix]

    @cached_property
    def config(self) -> ModelConfig:
        attention = AttentionSpec(norm="head" if self.qk_norm else "none", qkv_bias=self.bias)
        return ModelConfig(
            architecture="random",
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position=self.positions,
            norm=self.norm,
            ropes=tuple(
                RopeSpec(
                    dims=dims or self.head_dim,
                    query_growth=self.query_growth,
                    query_growth_length=8,
                )
                for dims in self.rotations
            ),
            layers=self.specs or (LayerSpec(attention=attention),),
            embedding_multiplier=self.embedding_multiplier,
            logits_multiplier=self.logits_multiplier,
            logits_soft_cap=self.logits_soft_cap,
        )


class SlowDecoder:
    """Random weights of `sizes`, large enough for clear-cut logits."""

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, sizes: Sizes) -> Self:
        """The one with these sizes that all instruction sets are compared with, for tests that
        leave it as it is."""
        return cls(sizes)

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._rng = np.random.default_rng(sizes.seed)
        self.layers = [self._layer(sizes.config.layer(n)) for n in range(sizes.layers)]
        self.embedding, self.head = self._matrix("embedding"), self._matrix("head")
        self.norm = self._norm(sizes.hidden)
        self.rotations = [self._angles(number) for number in range(len(sizes.rotations))]

    def _angles(self, number: int) -> RotationTable:
        half = self.sizes.config.ropes[number].dims // 2
        base = 100.0 * (1 + number)
        angles = np.outer(np.arange(self.sizes.positions), base ** (-np.arange(half) / half))
        by = self.sizes.query_growth
        factors = 1 + by * np.log(1 + np.arange(self.sizes.positions) // 8)
        return RotationTable(
            np.cos(angles).astype(np.float32),
            np.sin(angles).astype(np.float32),
            factors.astype(np.float32) if by else None,
        )

    def _layer(self, spec: LayerSpec) -> SlowLayer:
        sizes, norms = self.sizes, {}
        if spec.order != "post":
            norms["attention_norm"] = self._norm(sizes.hidden)
        if spec.order in ("pre", "sandwich") or spec.two_norms:
            norms["feed_forward_norm"] = self._norm(sizes.hidden)
        if spec.order in ("post", "sandwich"):
            norms["attention_output_norm"] = self._norm(sizes.hidden)
            norms["feed_forward_output_norm"] = self._norm(sizes.hidden)
        if spec.attention.norm != "none":
            whole = spec.attention.norm == "whole"
            for name, heads in (("query_norm", sizes.heads), ("key_norm", sizes.kv_heads)):
                norms[name] = self._norm(sizes.head_dim * (heads if whole else 1))
        if spec.attention.sub_norm:
            norms["mixed_norm"] = self._norm(sizes.heads * sizes.head_dim)
        if spec.feed_forward.sub_norm:
            norms["inner_norm"] = self._norm(sizes.inner)
        said = spec.feed_forward.experts
        inner = [name for name in MATRICES[4:] if spec.feed_forward.gated or name != "gate"]
        names = [*MATRICES[:4], *(inner if said is None or said.shared_inner else ())]
        if spec.halves == "feed_forward":
            names, norms["feed_forward_norm"] = inner, norms.pop("attention_norm")
        elif spec.halves == "mixer":
            names = [*MATRICES[:4]]
            del norms["feed_forward_norm"]
        if spec.attention.output_gate or spec.attention.head_gate:
            names.append("output_gate")
        matrices = {name: self._matrix(name, spec) for name in names}
        sinks = None
        if spec.attention.sinks:
            heads = spec.attention.query_heads or sizes.heads
            sinks = self._rng.standard_normal(heads).astype(np.float32)
        layer = SlowLayer(spec, matrices, norms, sinks)
        if said is not None:
            layer.experts = [
                {name: self._matrix(name, spec) for name in inner} for _ in range(said.count)
            ]
            source = random_source("F32", said.count, sizes.hidden, int(self._rng.integers(1000)))
            layer.router = SlowMatrix(source, None)
            if said.correction:
                layer.correction = self._rng.standard_normal(said.count).astype(np.float32)
            if said.shared_gate:
                layer.shared_gate = SlowMatrix(random_source("F32", 1, sizes.hidden, 3), None)
        return layer

    def _norm(self, size: int) -> NormWeights:
        spec = self.sizes.norm
        weight = (1 + self._rng.standard_normal(size) / 4).astype(np.float32)
        bias = None
        if spec.bias:
            bias = (self._rng.standard_normal(size) / 4).astype(np.float32)
        return NormWeights(weight, spec.eps, spec.kind, bias)

    def _matrix(self, name: str, spec: LayerSpec | None = None) -> SlowMatrix:
        sizes = self.sizes
        outputs, inputs = sizes.of(name, AttentionSpec() if spec is None else spec.attention)
        seed = int(self._rng.integers(1 << 30))
        source = random_source(sizes.format, outputs, inputs, seed)
        if sizes.format in ("F32", "BF16"):
            source = _scaled(source, 2.5 / inputs**0.5)
        bias = None
        if spec is not None and _has_bias(name, spec):
            bias = self._rng.standard_normal(outputs).astype(np.float32)
        return SlowMatrix(source, sizes.kind, bias, sizes.two_parts)

    # ---- the model, slowly

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Logits of every position, [tokens, vocab] float64."""
        x = self._embedded(tokens)
        for layer in self.layers:
            x = self._through(layer, x)
        logits = self.head(normalise(x, self.norm)) * self.sizes.logits_multiplier
        return _capped(logits, self.sizes.logits_soft_cap)

    def _embedded(self, tokens: list[int]) -> np.ndarray:
        return self.embedding.values[tokens] * self.sizes.embedding_multiplier

    def _through(self, layer: SlowLayer, x: np.ndarray) -> np.ndarray:
        by, norms = layer.spec.residual_multiplier, layer.norms
        if layer.spec.order == "parallel":
            normed = normalise(x, norms["attention_norm"])
            own = normalise(x, norms["feed_forward_norm"]) if layer.spec.two_norms else normed
            return x + by * (self._attention(layer, normed) + self._feed_forward(layer, own))
        for branch, name in ((self._attention, "attention"), (self._feed_forward, "feed_forward")):
            if layer.spec.halves == ("mixer" if name == "feed_forward" else "feed_forward"):
                continue
            result = branch(layer, normalise(x, norms.get(f"{name}_norm")))
            x = x + by * normalise(result, norms.get(f"{name}_output_norm"))
        return x

    def _attention(self, layer: SlowLayer, x: np.ndarray) -> np.ndarray:
        sizes, spec, count = self.sizes, layer.spec.attention, len(x)
        query, key, value = (layer.matrices[name](x) for name in ("query", "key", "value"))
        if spec.qkv_bound is not None:
            query, key, value = (
                each.clip(-spec.qkv_bound, spec.qkv_bound) for each in (query, key, value)
            )
        gates_of = x
        if spec.norm == "whole":
            query = normalise(query, layer.norms["query_norm"])
            key = normalise(key, layer.norms["key_norm"])
        query, key, value = (
            each.reshape(count, -1, sizes.head_dim) for each in (query, key, value)
        )
        if spec.norm_behind:
            query, key = self._rotate(query, spec.rope), self._rotate(key, spec.rope)
        if spec.norm == "head":
            query = normalise(query, layer.norms["query_norm"])
            key = normalise(key, layer.norms["key_norm"])
        if not spec.norm_behind:
            query, key = self._rotate(query, spec.rope), self._rotate(key, spec.rope)
        if spec.rope is not None:
            factors = self.rotations[spec.rope].query_factors
            query = query if factors is None else query * factors[:count, None, None]
        if sizes.cache != "float32":
            query = slow.bfloat16(query)
        group = query.shape[1] // sizes.kv_heads
        key, value = key.repeat(group, 1), value.repeat(group, 1)
        levels, scales = self._stored(key)
        scores = np.einsum("qhd,khd->hqk", query, levels * scales)
        scores *= sizes.head_dim**-0.5 if spec.scale is None else spec.scale
        scores = _capped(scores, spec.soft_cap)
        scores[:, self._hidden(count, spec)] = -np.inf
        mixed = self._mix(scores, *self._stored(value), layer.sinks).reshape(count, -1)
        if spec.output_gate:
            mixed = mixed / (1 + np.exp(-layer.matrices["output_gate"](gates_of)))
        if spec.head_gate:
            gates = layer.matrices["output_gate"](gates_of)
            gates = np.logaddexp(0, gates) if spec.soft_gate else 1 / (1 + np.exp(-gates))
            mixed = mixed * gates.repeat(sizes.head_dim, 1)
        return layer.matrices["output"](normalise(mixed, layer.norms.get("mixed_norm")))

    def _hidden(self, count: int, spec: AttentionSpec) -> np.ndarray:
        return unseen_keys(count, spec)

    def _stored(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the cache holds of [tokens, heads, dim]: levels and their scales [.., 1]."""
        if self.sizes.cache == "int8":
            return slow.int8_heads(rows)
        rounded = slow.bfloat16(rows) if self.sizes.cache == "bfloat16" else rows
        return rounded, np.ones((*rows.shape[:2], 1))

    def _mix(
        self,
        scores: np.ndarray,
        levels: np.ndarray,
        scales: np.ndarray,
        sinks: np.ndarray | None,
    ) -> np.ndarray:
        """[heads, queries, keys] and values -> [queries, heads, dim].

        But in float32 the weights, times their value's scale, are rounded to bfloat16, each
        relative to its split's peak.  The sum is of rounded weights where there are no scales.
        """
        top = scores.max(-1, keepdims=True)
        total, mixed = np.zeros_like(top), 0.0
        if sinks is not None:
            total = np.exp(sinks[:, None, None] - top)
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

    def _rotate(self, x: np.ndarray, rope: int | None) -> np.ndarray:
        if rope is None:
            return x
        dims = self.sizes.config.ropes[rope].dims
        first, second = np.split(x[..., :dims], 2, -1)
        cos, sin = (each[:, None] for each in self._table(rope, len(x)))
        turned = (first * cos - second * sin, second * cos + first * sin)
        return np.concatenate((*turned, x[..., dims:]), -1)

    def _table(self, number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of each token, [tokens, pairs]."""
        table = self.rotations[number]
        return table.cosines[:count], table.sines[:count]

    def _feed_forward(self, layer: SlowLayer, x: np.ndarray) -> np.ndarray:
        limit, said = layer.spec.feed_forward.limit, layer.spec.feed_forward.experts
        total = 0.0
        if "down" in layer.matrices:
            norm = layer.norms.get("inner_norm")
            total = feed_forward(layer.spec, layer.matrices, x, limit, norm)
        if layer.router is None:
            return total
        if layer.shared_gate is not None:
            total = total / (1 + np.exp(-layer.shared_gate(x)))
        shares = expert_shares(layer, layer.router(x))
        expert = partial(feed_forward, layer.spec, limit=None if said is None else said.limit)
        if said is not None and said.weighs_input:
            factors = shares.T[:, :, None]
            return total + sum(map(expert, layer.experts, factors * x))
        results = [expert(matrices, x) for matrices in layer.experts]
        return total + np.einsum("re,erh->rh", shares, np.array(results))

    # ---- the same for the kernels

    def packed(self, *, block_size: int = 16, num_blocks: int, threads: int = 1) -> Decoder:
        weights = ModelWeights(
            layers=[
                LayerWeights(
                    **{name: matrix.packed() for name, matrix in layer.matrices.items()},
                    **layer.norms,
                    sinks=layer.sinks,
                    experts=layer.expert_weights(),
                    coefficients=coefficients(layer.spec.feed_forward, None, ""),
                )
                for layer in self.layers
            ],
            embedding=self.embedding.packed(),
            head=self.head.packed(),
            norm=self.norm,
            rotations=self.rotations,
        )
        program = compile_program(self.sizes.config, weights)
        return Decoder(
            program,
            block_size,
            num_blocks,
            cache=self.sizes.cache,
            threads=threads,
            two_parts=self.sizes.two_parts,
        )


@lru_cache(maxsize=32)
def true_logits(sizes: Sizes, tokens: tuple[int, ...]) -> np.ndarray:
    """Those of SlowDecoder.of(sizes), which the caller leaves as they are. Not for K-quants, whose
    inputs are rounded as the instruction set does it."""
    return SlowDecoder.of(sizes).logits([*tokens])


def _has_bias(name: str, spec: LayerSpec) -> bool:
    if name in ("query", "key", "value", "output_gate"):
        return spec.attention.qkv_bias
    return spec.attention.output_bias if name == "output" else spec.feed_forward.bias


def _capped(x: np.ndarray, cap: float | None) -> np.ndarray:
    return x if cap is None else cap * np.tanh(x / cap)


def unseen_keys(count: int, spec: AttentionSpec) -> np.ndarray:
    """[queries, keys]: which keys a query doesn't see."""
    query, key = np.arange(count)[:, None], np.arange(count)
    hidden = key > query
    if spec.window is not None:
        hidden |= key <= query - spec.window
    if spec.chunk is not None:
        hidden |= key // spec.chunk != query // spec.chunk
    return hidden


def _scaled(source: Source, by: float) -> Source:
    values = source.values * np.float32(by)
    if source.format == "F32":
        return dataclasses.replace(source, data=values.reshape(-1).view(np.uint8), values=values)
    rounded = slow.bfloat16(values)
    data = (rounded.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return dataclasses.replace(source, data=data.reshape(-1).view(np.uint8), values=rounded)
