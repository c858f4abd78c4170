"""Attention over latents (DeepSeek-AI, "DeepSeek-V2", 2024), in its absorbed form.

A head's key is W_k c and its value W_v c, of the token's latent c. As q (W_k c) = (q W_k) c,
queries are mapped to the latents' space, attention is over latents, and its result is mapped to
values. All steps compute this form, prefills too: a token's bits don't depend on how it was
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from penstock.model.attention_spec import LatentSpec
from penstock_worker.attention.interface import ScoreRule
from penstock_worker.layers.attention import head_gates
from penstock_worker.layers.choosing import ChoosingIndex
from penstock_worker.layers.parts import NO_NORM, Norm, Parts, RMSNorm
from penstock_worker.layers.step import Step
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor


class LatentAttention:
    """Maps [rows, hidden] to [rows, hidden], and writes the rows' latents to the KV cache."""

    def __init__(
        self,
        layer: int,
        spec: LatentSpec,
        queries: Queries,
        latent: Product,
        latent_norm: Norm,
        to_latents: Product,
        to_values: Product,
        output: Product,
        *,
        rope: int,
        scale: float | None,
        index: ChoosingIndex | None = None,
        chooses: bool = False,
        head_gates: Product | None = None,
    ) -> None:
        """`layer`: index of the layer's KV cache, counted from this rank's first layer.
        `latent` gives [rows, rank + rotating].
        `to_latents`, `to_values`: each head's maps of the plain part of queries to latents, and of
        latents to values; [rows, heads, size] to the same of another size.
        `rope`: which of the step's rotations.
        `index`: the layer's own index of tokens. `chooses`: whether only tokens that an index has
        chosen are read, this layer's or that of a layer before it.
        `head_gates`: gives one for each head, [rows, heads], whose logistic function weighs it."""
        self._layer = layer
        self._spec = spec
        self._queries = queries
        self._latent = latent
        self._latent_norm = latent_norm
        self._to_latents = to_latents
        self._to_values = to_values
        self._output = output
        self._rope = rope
        self._index = index
        self._head_gates = head_gates
        self._rule = ScoreRule(scale=scale, chosen=chooses)

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        spec = self._spec
        vector = self._queries.vector(hidden)
        if self._index is not None:
            self._index(hidden, vector, step)
        heads = self._queries.of(vector).unflatten(-1, (-1, spec.plain + spec.rotating))
        plain, turning = heads.split((spec.plain, spec.rotating), -1)
        # What rotates comes first in a head.
        query = torch.cat((turning, self._to_latents(plain)), -1)
        latent, shared = self._latent(hidden).split((spec.rank, spec.rotating), -1)
        key = torch.cat((shared, self._latent_norm(latent.contiguous())), -1)[:, None]
        mixed = step.attention.attend(
            self._layer, query, key, key, step.rotations[self._rope], None, self._rule
        )
        values = self._to_values(mixed)
        if self._head_gates is not None:
            gate = self._head_gates(hidden)[..., None].float()
            values = (values.float() / (1.0 + torch.exp(-gate))).to(values.dtype)
        return self._output(values.flatten(1))

    @staticmethod
    def load(parts: Parts, layer: int) -> LatentAttention:
        config, prefix = parts.config, f"layers.{layer}.self_attn"
        rule = config.layer(layer).attention
        spec = rule.latent
        if spec is None or rule.rope is None:
            raise TypeError(f"layer {layer} has no latents that rotate")
        latent = parts.product(
            [(f"{prefix}.kv_a_proj", spec.rank + spec.rotating)],
            config.hidden_size,
            bias=rule.qkv_bias,
        )
        heads = config.num_heads
        to_latents, to_values = per_head(parts.weights, prefix, spec, heads)
        index = None
        if rule.index is not None and not rule.index.shared:
            index = ChoosingIndex.load(parts, layer, rule.index, spec.query_rank, rule.rope)
        return LatentAttention(
            layer - parts.shard.layers.start,
            spec,
            Queries.load(parts, layer, spec),
            latent,
            _norm(parts, f"{prefix}.kv_a_norm", spec.rank, spec.eps),
            parts.ops.per_head(to_latents),
            parts.ops.per_head(to_values),
            parts.summed(
                f"{prefix}.o_proj", config.hidden_size, heads * spec.value, bias=rule.output_bias
            ),
            rope=rule.rope,
            scale=rule.scale,
            index=index,
            chooses=rule.index is not None,
            head_gates=head_gates(parts, prefix, heads) if rule.head_gate else None,
        )


class Queries:
    """Maps [rows, hidden] to all heads' queries, [rows, heads * (plain + rotating)], by way of a
    shorter vector where the model has one."""

    def __init__(self, down: Product | None, norm: Norm, up: Product) -> None:
        self._down = down
        self._norm = norm
        self._up = up

    def vector(self, hidden: Tensor) -> Tensor:
        """Returns what queries are made of, [rows, query rank]; without one, the hidden state."""
        return hidden if self._down is None else self._norm(self._down(hidden))

    def of(self, vector: Tensor) -> Tensor:
        """Returns the queries of such a vector."""
        return self._up(vector)

    @staticmethod
    def load(parts: Parts, layer: int, spec: LatentSpec) -> Queries:
        config, prefix = parts.config, f"layers.{layer}.self_attn"
        outputs = config.num_heads * (spec.plain + spec.rotating)
        if not spec.query_rank:
            up = parts.product([(f"{prefix}.q_proj", outputs)], config.hidden_size, bias=False)
            return Queries(None, NO_NORM, up)
        bias = config.layer(layer).attention.qkv_bias
        return Queries(
            parts.product([(f"{prefix}.q_a_proj", spec.query_rank)], config.hidden_size, bias=bias),
            _norm(parts, f"{prefix}.q_a_norm", spec.query_rank, spec.eps),
            parts.product([(f"{prefix}.q_proj", outputs)], spec.query_rank, bias=False),
        )


class PerHead:
    """A product of its own for each head: maps [rows, heads, inputs] to [rows, heads, outputs]."""

    def __init__(self, products: Sequence[Product]) -> None:
        self._products = products

    @staticmethod
    def of(weights: Tensor, product: Callable[[Tensor], Product]) -> PerHead:
        """`weights`: [heads, outputs, inputs]; `product` makes a matrix's."""
        return PerHead([product(_fresh(head)) for head in weights])

    def __call__(self, x: Tensor) -> Tensor:
        found = [product(x[:, head].contiguous()) for head, product in enumerate(self._products)]
        return torch.stack(found, 1)


def per_head(
    weights: Weights, prefix: str, spec: LatentSpec, heads: int, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the matrices that map a head's queries to latents, [heads, rank, plain], and latents
    to values, [heads, value, rank]: those of the heads that `weights` hands out, of `heads` in all.
    A file has them like that, or as one."""
    if weights.has(f"{prefix}.k_b_proj.weight"):
        return (
            weights.take(f"{prefix}.k_b_proj.weight", (heads, spec.rank, spec.plain), dtype),
            weights.take(f"{prefix}.v_b_proj.weight", (heads, spec.value, spec.rank), dtype),
        )
    shape = (heads * (spec.plain + spec.value), spec.rank)
    both = weights.take(f"{prefix}.kv_b_proj.weight", shape, dtype)
    keys, values = both.unflatten(0, (-1, spec.plain + spec.value)).split(
        (spec.plain, spec.value), 1
    )
    return keys.transpose(1, 2), values


def _norm(parts: Parts, name: str, size: int, eps: float) -> Norm:
    return RMSNorm(parts.ops, parts.norm_weight(name, size), eps)


def _fresh(matrix: Tensor) -> Tensor:
    """A copy, as products want whole tensors with torch's own alignment."""
    return matrix.clone(memory_format=torch.contiguous_format)
