"""Packs a checkpoint's matrices for the CPU kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypedDict

import numpy as np
import torch

from penstock.layer_spec import FeedForwardSpec, LatentSpec, LayerSpec
from penstock.model_config import ModelConfig
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, pack
from penstock_kernels.cpu.memory import Arena
from penstock_kernels.cpu.program import NormWeights, RotationTable
from penstock_worker.forward.cpu.packing import QUANTISED, CPUPacking
from penstock_worker.forward.cpu.split import WHOLE, Split
from penstock_worker.forward.cpu.weights import (
    ExpertWeights,
    LatentWeights,
    LayerWeights,
    ModelWeights,
)
from penstock_worker.layers.decoder_layer import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT_NORM,
    FEED_FORWARD_NORM,
    FEED_FORWARD_OUTPUT_NORM,
)
from penstock_worker.layers.latent_attention import per_head
from penstock_worker.layers.rotary import Rotary
from penstock_worker.parallel.shard import Shard
from penstock_worker.weights.cut import Cut
from penstock_worker.weights.weights import Weights


class FeedForwardMatrices(TypedDict):
    """Matrices of a feed-forward, by their fields in LayerWeights."""

    gate: PackedMatrix | None
    up: PackedMatrix | None
    down: PackedMatrix | None


@dataclass
class CPUWeights:
    """Packs a checkpoint's matrices for the CPU kernels."""

    config: ModelConfig
    weights: Weights
    kind: MatrixKind | None
    """Kind of all matrices; None means each as the file has it. A quantised kind applies to
    unquantised tensors only: what the file has quantised stays as it is."""
    threads: int
    arena: Arena = field(default_factory=Arena)
    split: Split = WHOLE
    """Which outputs of matrices are packed."""
    shard: Shard | None = None
    """This rank's place among several; only its stage is read."""

    def __post_init__(self) -> None:
        self._packing = CPUPacking(self.weights, self.threads, self.arena)

    def read(self, positions: int) -> ModelWeights:
        """Returns all weights. `positions` is the number of positions in the rotary tables."""
        config, shard = self.config, self.shard
        first, last = (True, True) if shard is None else (shard.place.first, shard.place.last)
        numbers = range(config.num_layers) if shard is None else shard.layers
        if shard is not None:
            self.weights.ignore_those(Cut(shard).elsewhere)
        rotaries = [Rotary.load(rope, self.weights, positions) for rope in config.ropes]
        layers = [self._layer(number) for number in numbers]
        embedding = embedding_norm = None
        if first or (last and config.tie_word_embeddings):
            embedding = self._ends_matrix("embed_tokens", self._embedding_kind())
        if first and config.embedding_norm:
            embedding_norm = self._norm("embedding_norm", config.hidden_size)
        head = self._head(embedding) if last else None
        norm = self._norm("norm", config.hidden_size) if last else None
        self.weights.finish()
        self._packing.report()
        return ModelWeights(
            layers=layers,
            embedding=embedding if first else None,
            head=head,
            norm=norm,
            embedding_norm=embedding_norm,
            rotations=[_table(each) for each in rotaries],
        )

    def _head(self, embedding: PackedMatrix | None) -> PackedMatrix:
        if not self.config.tie_word_embeddings or embedding is None:
            head = self._ends_matrix("lm_head", self.kind)
        else:
            self.weights.ignore("lm_head.weight")
            head = embedding
        if not self.config.head_bias:
            return head
        bias = self._vector("lm_head.bias", self.config.vocab_size)
        return head.with_bias(self._part("lm_head", bias))

    def _ends_matrix(self, name: str, kind: MatrixKind | None) -> PackedMatrix:
        return self._matrix(name, self.config.vocab_size, self.config.hidden_size, kind=kind)

    def _part(self, name: str, values: np.ndarray) -> np.ndarray:
        """Returns the part of a vector that belongs to the outputs of a matrix that are packed."""
        rows = self.split.rows(name, len(values))
        return values[rows.start : rows.stop]

    def _embedding_kind(self) -> MatrixKind | None:
        # int8 makes products fast; rows that are only looked up would lose precision for nothing.
        only_looked_up = not self.config.tie_word_embeddings
        return None if self.kind in QUANTISED and only_looked_up else self.kind

    def _layer(self, number: int) -> LayerWeights:
        config, at = self.config, f"layers.{number}"
        spec = config.layer(number)
        hidden, dim = config.hidden_size, config.head_dim
        if spec.attention.latent is not None:
            return self._latent_layer(number, spec.attention.latent)
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        attention, qkv_bias = f"{at}.self_attn", spec.attention.qkv_bias
        matrix = partial(self._matrix, kind=self.kind)
        norms = self._norms(spec, at)
        return LayerWeights(
            query=matrix(f"{attention}.q_proj", queries, hidden, bias=qkv_bias),
            key=matrix(f"{attention}.k_proj", keys, hidden, bias=qkv_bias),
            value=matrix(f"{attention}.v_proj", keys, hidden, bias=qkv_bias),
            output=matrix(f"{attention}.o_proj", hidden, queries, bias=spec.attention.output_bias),
            **self._feed_forward(spec.feed_forward, f"{at}.mlp"),
            experts=self._experts(spec.feed_forward, f"{at}.mlp"),
            attention_norm=norms.get("attention_norm"),
            feed_forward_norm=norms.get("feed_forward_norm"),
            attention_output_norm=norms.get("attention_output_norm"),
            feed_forward_output_norm=norms.get("feed_forward_output_norm"),
            query_norm=norms.get("query_norm"),
            key_norm=norms.get("key_norm"),
            sinks=self._part(
                f"{attention}.sinks",
                self._vector(f"{attention}.sinks.weight", config.num_heads),
            )
            if spec.attention.sinks
            else None,
        )

    def _latent_layer(self, number: int, latent: LatentSpec) -> LayerWeights:
        config, at = self.config, f"layers.{number}"
        spec, hidden, prefix = config.layer(number), config.hidden_size, f"{at}.self_attn"
        matrix = partial(self._matrix, kind=self.kind)
        norms, bias = self._norms(spec, at), spec.attention.qkv_bias
        heads, rank = config.num_heads, latent.query_rank
        to_latents, to_values = per_head(self.weights, prefix, latent, heads, torch.float32)
        output = matrix(
            f"{prefix}.o_proj", hidden, heads * latent.value, bias=spec.attention.output_bias
        )
        return LayerWeights(
            query=matrix(
                f"{prefix}.q_proj", heads * (latent.plain + latent.rotating), rank or hidden
            ),
            output=output,
            latent=LatentWeights(
                down=matrix(
                    f"{prefix}.kv_a_proj", latent.rank + latent.rotating, hidden, bias=bias
                ),
                norm=self._latent_norm(f"{prefix}.kv_a_norm", latent.rank, latent),
                to_latents=tuple(map(self._packed, to_latents)),
                to_values=tuple(map(self._packed, to_values)),
                query_down=matrix(f"{prefix}.q_a_proj", rank, hidden, bias=bias) if rank else None,
                query_norm=self._latent_norm(f"{prefix}.q_a_norm", rank, latent) if rank else None,
            ),
            **self._feed_forward(spec.feed_forward, f"{at}.mlp"),
            experts=self._experts(spec.feed_forward, f"{at}.mlp"),
            attention_norm=norms.get("attention_norm"),
            feed_forward_norm=norms.get("feed_forward_norm"),
        )

    def _latent_norm(self, name: str, size: int, latent: LatentSpec) -> NormWeights:
        return replace(self._norm(name, size), eps=latent.eps)

    def _packed(self, matrix: torch.Tensor) -> PackedMatrix:
        """A head's own map. It was a part of another matrix, and is never packed to whole
        numbers."""
        kind = MatrixKind.F32 if self.kind is MatrixKind.F32 else MatrixKind.BF16
        outputs, inputs = matrix.shape
        return pack(
            "F32",
            matrix.contiguous().numpy().view(np.uint8),
            (outputs, inputs),
            kind=kind,
            threads=self.threads,
            arena=self.arena,
        )

    def _feed_forward(self, spec: FeedForwardSpec, at: str) -> FeedForwardMatrices:
        """Returns the matrices of the feed-forward, or of the expert that every token has."""
        if spec.experts is None:
            return self._sized(spec, at, self.config.intermediate_size)
        if not spec.experts.shared_inner:
            return {"gate": None, "up": None, "down": None}
        return self._sized(spec, f"{at}.shared_expert", spec.experts.shared_inner)

    def _sized(self, spec: FeedForwardSpec, at: str, inner: int) -> FeedForwardMatrices:
        matrix = partial(self._matrix, kind=self.kind, bias=spec.bias)
        hidden = self.config.hidden_size
        return {
            "gate": matrix(f"{at}.gate_proj", inner, hidden) if spec.gated else None,
            "up": matrix(f"{at}.up_proj", inner, hidden),
            "down": matrix(f"{at}.down_proj", hidden, inner),
        }

    def _experts(self, spec: FeedForwardSpec, at: str) -> ExpertWeights | None:
        said = spec.experts
        if said is None:
            return None
        each = [
            self._sized(spec, f"{at}.experts.{number}", said.inner) for number in range(said.count)
        ]
        correction = None
        if said.correction:
            correction = self._vector(f"{at}.router.correction", said.count)
        return ExpertWeights(
            # A choice turns on small differences, and a router is small.
            router=self._matrix(
                f"{at}.router",
                said.count,
                self.config.hidden_size,
                kind=MatrixKind.F32,
                bias=said.router_bias,
            ),
            gates=tuple(found["gate"] for found in each if found["gate"] is not None),
            ups=tuple(found["up"] for found in each if found["up"] is not None),
            downs=tuple(found["down"] for found in each if found["down"] is not None),
            correction=correction,
            shared_gate=self._matrix(
                f"{at}.shared_expert_gate", 1, self.config.hidden_size, kind=MatrixKind.F32
            )
            if said.shared_gate
            else None,
        )

    def _norms(self, spec: LayerSpec, at: str) -> Mapping[str, NormWeights]:
        """Returns those norms that the layer has, by their fields in LayerWeights."""
        hidden, dim = self.config.hidden_size, self.config.head_dim
        names = {}
        if spec.order != "post" and spec.first_norm:
            names["attention_norm"] = ATTENTION_NORM
        if spec.order in ("pre", "sandwich") or (spec.order == "parallel" and spec.two_norms):
            names["feed_forward_norm"] = FEED_FORWARD_NORM
        if spec.order in ("post", "sandwich"):
            names["attention_output_norm"] = ATTENTION_OUTPUT_NORM
            names["feed_forward_output_norm"] = FEED_FORWARD_OUTPUT_NORM
        norms = {field: self._norm(f"{at}.{name}", hidden) for field, name in names.items()}
        heads = {"query": self.config.num_heads, "key": self.config.num_kv_heads}
        for which, count in heads.items():
            name = f"{at}.self_attn.{which[0]}_norm"
            if spec.attention.norm == "head":
                norms[f"{which}_norm"] = replace(self._norm(name, dim, with_bias=False), kind="rms")
            elif spec.attention.norm == "whole":
                norms[f"{which}_norm"] = self._norm(name, count * dim)
        return norms

    def _norm(self, name: str, size: int, *, with_bias: bool = True) -> NormWeights:
        """Returns the norm of that name, of the model's kind."""
        spec = self.config.norm
        weight = self._vector(f"{name}.weight", size)
        if spec.plus_one:
            weight = weight + np.float32(1)
        biased = spec.kind == "layer" and spec.bias and with_bias
        bias = self._vector(f"{name}.bias", size) if biased else None
        return NormWeights(weight, spec.eps, spec.kind, bias)

    def _vector(self, name: str, size: int) -> np.ndarray:
        return self._packing.vector(name, size)

    def _matrix(
        self, name: str, outputs: int, inputs: int, *, kind: MatrixKind | None, bias: bool = False
    ) -> PackedMatrix:
        rows = self.split.rows(name, outputs)
        return self._packing.matrix(name, outputs, inputs, kind=kind, bias=bias, rows=rows)


def _table(rotary: Rotary) -> RotationTable:
    factors = rotary.query_factors
    return RotationTable(
        rotary.cos.numpy(), rotary.sin.numpy(), None if factors is None else factors.numpy()
    )
