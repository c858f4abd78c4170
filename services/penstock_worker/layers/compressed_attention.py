"""Attention to the last tokens, and to entries that stand for several tokens each (DeepSeek-AI,
"DeepSeek-V4", 2026).

DeepSeek's own code multiplies the index's queries and keys by a Hadamard matrix, which changes no
product, and rounds them to 4 bits, and the keys' plain numbers to 8. Constant factors of all its
scores are left out here: they change no choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.model.attention_spec import AttentionSpec, CompressedSpec, IndexSpec
from penstock_kernels import reference
from penstock_worker.attention.interface import (
    CompressedAttention,
    CompressingAttention,
    Entries,
    EntryParts,
    Rotation,
    ScoreRule,
)
from penstock_worker.layers.parts import Norm, Parts, RMSNorm
from penstock_worker.layers.step import Step
from penstock_worker.quantisation.interface import Product

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "compressor.indexer"
POSITION_BIAS = "position_bias"
"""A logit of each of an entry's tokens, for each number, by its place."""


@dataclass(frozen=True)
class Compressor:
    """Makes one kind of a layer's entries: those that attention reads, or their keys in the
    index."""

    values: Product
    logits: Product
    """Map [rows, hidden] to [rows, series * size]: the first half of two is for the next entry."""
    bias: Tensor
    """[rate, series * size] float32, is added to the logits of an entry's tokens."""
    norm: Norm
    size: int

    def given(self, hidden: Tensor) -> list[Tensor]:
        """Returns what the rows give to entries."""
        return [self.values(hidden), self.logits(hidden)]

    def entries(self, values: Tensor, logits: Tensor, parts: EntryParts, turn: Rotation) -> Tensor:
        """Makes entries, [entries, size], of what their tokens have given: `values` and `logits`,
        [entries, tokens, series * size]."""
        rate = len(self.bias)
        logits = logits.float() + self.bias.repeat(logits.shape[1] // rate, 1)
        # Of two series, the tokens of the entry before have the first, and its own the second.
        values, logits = (
            torch.cat(
                [
                    each[:, at * rate : (at + 1) * rate, at * self.size : (at + 1) * self.size]
                    for at in range(each.shape[1] // rate)
                ],
                1,
            )
            for each in (values, logits)
        )
        mixed = reference.entries_of(values, logits, parts.there).to(parts.rows.dtype)
        turned = turned_at(self.norm(mixed)[:, None], turn, parts.firsts)
        return turned[:, 0]

    @staticmethod
    def load(parts: Parts, prefix: str, spec: CompressedSpec, size: int) -> Compressor:
        hidden, wide = parts.config.hidden_size, spec.series * size
        bias = f"{prefix}.{POSITION_BIAS}"
        return Compressor(
            parts.product([(f"{prefix}.kv_proj", wide)], hidden, bias=False),
            parts.product([(f"{prefix}.gate_proj", wide)], hidden, bias=False),
            parts.weights.take(bias, (spec.rate, wide), torch.float32),
            _norm(parts, f"{prefix}.kv_norm", size),
            size,
        )


@dataclass(frozen=True)
class EntryIndex:
    """Chooses the entries that a row reads."""

    spec: IndexSpec
    query: Product
    """Maps the vector that attention's queries are made of."""
    weigher: Product
    """Maps [rows, hidden] to [rows, heads]."""
    compressor: Compressor

    def choose(
        self,
        layer: int,
        hidden: Tensor,
        vector: Tensor,
        attention: CompressedAttention,
        turn: Rotation,
    ) -> Tensor:
        """Returns [rows, entries] bool. `hidden`: [rows, hidden]. `vector`: [rows, query rank]."""
        query = self.query(vector).unflatten(-1, (self.spec.heads, self.spec.size))
        turned = turned_at(query, turn, turn.positions)
        return attention.choose(layer, turned, self.weigher(hidden), self.spec)

    @staticmethod
    def load(parts: Parts, prefix: str, spec: CompressedSpec, index: IndexSpec) -> EntryIndex:
        at, wide = f"{prefix}.{INDEX}", index.heads * index.size
        weigher = [(f"{at}.scorer.weights_proj", index.heads)]
        return EntryIndex(
            index,
            parts.product([(f"{at}.q_b_proj", wide)], spec.query_rank, bias=False),
            parts.product(weigher, parts.config.hidden_size, bias=False),
            Compressor.load(parts, at, spec, index.size),
        )


class CompressedSelfAttention:
    """Maps [rows, hidden] to [rows, hidden], and writes keys and entries to the cache."""

    def __init__(
        self,
        layer: int,
        spec: CompressedSpec,
        queries: tuple[Product, Norm, Product, Norm],
        key: tuple[Product, Norm],
        output: tuple[Product, Product],
        compressors: tuple[Compressor, ...],
        index: EntryIndex | None,
        *,
        rope: int,
        rule: ScoreRule,
    ) -> None:
        """`layer`: index of the layer's cache, counted from this rank's first layer. `queries`: the
        product and the norm that make a vector of a row, the product that makes queries of it, and
        the norm of each. `output`: each group's product, [rows, groups, inputs] to [rows, groups,
        group rank], and that of them all. `compressors`: of entries, and of keys of the index."""
        self._layer = layer
        self._spec = spec
        self._down, self._vector_norm, self._up, self._query_norm = queries
        self._key, self._key_norm = key
        self._by_group, self._output = output
        self._compressors = compressors
        self._index = index
        self._rope = rope
        self._rule = rule

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        if not isinstance(step.attention, CompressingAttention):
            raise TypeError("this attention has no entries that stand for several tokens")
        attention, turn = step.attention.compressed(), step.rotations[self._rope]
        key = self._key_norm(self._key(hidden))[:, None]
        vector = self._vector_norm(self._down(hidden))
        query = self._query_norm(self._up(vector).unflatten(-1, (-1, key.shape[-1])))
        chosen = None
        if self._compressors:
            self._compress(hidden, attention, turn)
        if self._index is not None:
            chosen = self._index.choose(self._layer, hidden, vector, attention, turn)
        mixed = attention.attend(
            self._layer,
            turned_at(query, turn, turn.positions),
            turned_at(key, turn, turn.positions),
            self._rule,
            chosen,
        )
        cos, sin = turn.rows
        mixed = reference.apply_rope_last(mixed, cos, -sin)
        groups = mixed.flatten(1).unflatten(1, (self._spec.groups, -1))
        return self._output(self._by_group(groups).flatten(1))

    def _compress(self, hidden: Tensor, attention: CompressedAttention, turn: Rotation) -> None:
        given = [each.given(hidden) for each in self._compressors]
        sizes = [part.shape[1] for each in given for part in each]
        rows = torch.cat([part for each in given for part in each], 1)
        parts = attention.give(self._layer, rows)
        if not len(parts.firsts):
            return
        stored = parts.rows.split(sizes, -1)
        pairs = zip(self._compressors, stored[::2], stored[1::2], strict=True)
        made = [each.entries(values, logits, parts, turn) for each, values, logits in pairs]
        attention.store(self._layer, Entries(*made))

    @staticmethod
    def load(parts: Parts, layer: int) -> CompressedSelfAttention:
        config, prefix = parts.config, f"layers.{layer}.self_attn"
        rule = config.layer(layer).attention
        spec, rope = rule.compressed, rule.rope
        if spec is None or rope is None:
            raise TypeError(f"layer {layer} has no compressed attention that rotates")
        head, hidden, vector = config.head_dim, config.hidden_size, spec.query_rank
        wide = config.num_heads * head
        by_group = (spec.groups * spec.group_rank, wide // spec.groups)
        weights = parts.weights.take(f"{prefix}.o_a_proj.weight", by_group)

        def product(name: str, outputs: int, inputs: int) -> Product:
            return parts.product([(f"{prefix}.{name}", outputs)], inputs, bias=False)

        compressors, index = [], None
        if spec.rate:
            compressors.append(Compressor.load(parts, f"{prefix}.compressor", spec, head))
        if spec.index is not None:
            index = EntryIndex.load(parts, prefix, spec, spec.index)
            compressors.append(index.compressor)
        return CompressedSelfAttention(
            layer - parts.shard.layers.start,
            spec,
            (
                product("q_a_proj", vector, hidden),
                _norm(parts, f"{prefix}.q_a_norm", vector),
                product("q_proj", wide, vector),
                parts.weightless_norm(head),
            ),
            (product("kv_proj", head, hidden), _norm(parts, f"{prefix}.kv_norm", head)),
            (
                parts.ops.per_head(weights.unflatten(0, (spec.groups, -1))),
                product("o_proj", hidden, spec.groups * spec.group_rank),
            ),
            tuple(compressors),
            index,
            rope=rope,
            rule=_rule(parts, prefix, rule),
        )


def turned_at(heads: Tensor, turn: Rotation, positions: Tensor) -> Tensor:
    """Rotates [rows, heads, size], whose rows are at `positions`, [rows] int64."""
    return reference.apply_rope_last(heads, turn.cos[positions], turn.sin[positions])


def _rule(parts: Parts, prefix: str, spec: AttentionSpec) -> ScoreRule:
    sinks = None
    if spec.sinks:
        name = f"{prefix}.sinks.weight"
        sinks = parts.weights.take(name, (parts.config.num_heads,), torch.float32)
    return ScoreRule(scale=spec.scale, window=spec.window, sinks=sinks)


def _norm(parts: Parts, name: str, size: int) -> Norm:
    return RMSNorm(parts.ops, parts.norm_weight(name, size), parts.config.norm.eps)
