"""Packs a checkpoint's matrices for the CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from penstock.model.attention_spec import (
    AttentionSpec,
    CompressedSpec,
    IndexSpec,
    KVHeadsSpec,
    LatentSpec,
)
from penstock.model.block_index_spec import BlockIndexSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec
from penstock.model.recurrent_spec import RecurrentSpec
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, pack
from penstock_kernels.cpu.memory import Arena
from penstock_kernels.cpu.operands import NormWeights
from penstock_worker.forward.cpu.compressed_weights import CompressedReader
from penstock_worker.forward.cpu.expert_weights import ExpertReader
from penstock_worker.forward.cpu.norms import NormReader
from penstock_worker.forward.cpu.optional_weights import OptionalWeights
from penstock_worker.forward.cpu.packing import QUANTISED, CPUPacking
from penstock_worker.forward.cpu.recurrent_weights import RecurrentReader
from penstock_worker.forward.cpu.split import WHOLE, Split
from penstock_worker.forward.cpu.weights import (
    BlockIndexWeights,
    FeedForwardMatrices,
    IndexWeights,
    LatentWeights,
    LayerWeights,
    ModelWeights,
    rotation_table,
)
from penstock_worker.layers.attention import GATES, HEAD_GATES, QUERIES_AND_GATES
from penstock_worker.layers.feed_forward import SUB_NORM, coefficients
from penstock_worker.layers.latent_attention import per_head
from penstock_worker.layers.recurrent.mixer_parts import NAME as RECURRENT
from penstock_worker.layers.rotary_tables import tables_of
from penstock_worker.parallel.shard import Shard
from penstock_worker.weights.cut import Cut
from penstock_worker.weights.heads import SharedEnds
from penstock_worker.weights.names import (
    INDEX_KEY,
    INDEX_KEY_NORM,
    INDEX_QUERY,
    INDEX_QUERY_NORM,
    INDEX_WEIGHTS,
)
from penstock_worker.weights.weights import Weights


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
    ends: SharedEnds[PackedMatrix] = field(default_factory=SharedEnds)
    """Embeddings and output heads that others have packed."""

    def __post_init__(self) -> None:
        self._packing = CPUPacking(self.weights, self.threads, self.arena)
        self._norms = NormReader(self.config, self._packing)
        self._further = OptionalWeights(
            self.config, self.weights, self.kind, self.matrix, self._norms.norm, self.vector
        )
        rank = 0 if self.shard is None else self.shard.place.tensor_rank
        self._experts = ExpertReader(self, self.split, rank)

    def read(self, positions: int) -> ModelWeights:
        """Returns all weights. `positions` is the number of positions in the rotary tables."""
        config, shard = self.config, self.shard
        first, last = (True, True) if shard is None else (shard.place.first, shard.place.last)
        numbers = range(config.num_layers) if shard is None else shard.layers
        if shard is not None:
            self.weights.ignore_those(Cut(shard).elsewhere)
        rotaries = [tables_of(rope, self.weights, positions) for rope in config.ropes]
        layers: dict[int, LayerWeights] = {}
        for number in numbers:
            repeated = config.layer(number).repeats
            layers[number] = self._layer(number) if repeated is None else layers[repeated]
        embedding = embedding_norm = None
        if first or (last and config.tie_word_embeddings):
            rows, kind = config.embedding_rows, self._embedding_kind()
            embedding = self._ends_matrix("embed_tokens", rows, kind)
        if first and config.embedding_norm:
            embedding_norm = self._norms.norm("embedding_norm", config.row_of_embedding)
        further = self._further
        layer_inputs = further.layer_inputs(self._embedding_kind(looked_up=True))
        streams, mixing = further.stream_ends(), further.mixing_ends()
        tables = (further.positions(), further.types(), further.projection()) if first else ()
        table, types, projection = tables or (None, None, None)
        head = self._head(embedding) if last else None
        norm = None
        if last and config.final_norm:
            norm = self._norms.norm("norm", config.hidden_size)
        self.weights.finish()
        self._packing.report()
        return ModelWeights(
            layers=[*layers.values()],
            embedding=embedding if first else None,
            head=head,
            norm=norm,
            embedding_norm=embedding_norm,
            rotations=[*map(rotation_table, rotaries, config.ropes)],
            layer_inputs=layer_inputs,
            streams=streams,
            mixing=mixing,
            positions=table,
            types=types,
            projection=projection,
        )

    def _head(self, embedding: PackedMatrix | None) -> PackedMatrix:
        if not self.config.tie_word_embeddings or embedding is None:
            head = self._ends_matrix("lm_head", self.config.vocab_size, self.kind)
        else:
            self.weights.ignore("lm_head.weight")
            head = embedding
        if not self.config.head_bias:
            return head
        bias = self.vector("lm_head.bias", self.config.vocab_size)
        return head.with_bias(self._part("lm_head", bias))

    def _ends_matrix(self, name: str, rows: int, kind: MatrixKind | None) -> PackedMatrix:
        width = self.config.row_of_embedding
        make = partial(self.matrix, name, rows, width, kind=kind)
        return self.ends.get(self.weights, f"{name}.weight", make)

    def _part(self, name: str, values: np.ndarray) -> np.ndarray:
        """Returns the part of a vector that belongs to the outputs of a matrix that are packed."""
        rows = self.split.rows(name, len(values))
        return values[rows.start : rows.stop]

    def _embedding_kind(self, *, looked_up: bool = False) -> MatrixKind | None:
        # int8 makes products fast; rows that are only looked up would lose precision for nothing.
        only_looked_up = looked_up or not self.config.tie_word_embeddings
        return None if self.kind in QUANTISED and only_looked_up else self.kind

    def _layer(self, number: int) -> LayerWeights:
        spec, at = self.config.layer(number), f"layers.{number}"
        own, further = self.config.kv_heads(number), self._further
        if spec.recurrent is not None:
            found = self._recurrent(spec.recurrent, f"{at}.{RECURRENT}")
            if spec.attends_beside:
                own_output, attends = (
                    found.output,
                    self._attention(spec.attention, own, f"{at}.self_attn"),
                )
                found = replace(attends, recurrent=found.recurrent, recurrent_output=own_output)
        elif spec.halves == "feed_forward":
            found = LayerWeights()
        elif spec.attention.latent is not None:
            found = self._latent(spec.attention, spec.attention.latent, f"{at}.self_attn")
        elif spec.attention.compressed is not None:
            found = self._compressed(spec.attention, spec.attention.compressed, f"{at}.self_attn")
        else:
            found = self._attention(spec.attention, own, f"{at}.self_attn")
        if spec.halves != "mixer":
            feed_forward = self._feed_forward(spec.feed_forward, f"{at}.mlp")
            experts = self._experts.read(spec.feed_forward, f"{at}.mlp", number)
            bends = coefficients(spec.feed_forward, self.weights, f"{at}.mlp")
            found = replace(found, **feed_forward, experts=experts, coefficients=bends)
            if spec.feed_forward.sub_norm:
                inner = self.config.inner(number)
                norm = self._norms.norm(f"{at}.mlp.{SUB_NORM}", inner)
                found = replace(found, inner_norm=norm)
        if spec.attends:
            found = replace(found, **self._norms.of_heads(spec.attention, own, at))
        return replace(
            found,
            **self._norms.of_layer(spec, at),
            beside=further.beside(spec, at),
            own_input=further.own_input(at),
            output_scale=further.output_scale(spec, at),
            streams=further.stream_layer(at),
            mixing=further.mixing_layer(at),
            cross=further.cross(at),
        )

    def _attention(self, spec: AttentionSpec, own: KVHeadsSpec, at: str) -> LayerWeights:
        """own: its key and value heads."""
        hidden, further = self.config.hidden_size, self._further
        inputs = self.config.attention_inputs
        heads = spec.query_heads or self.config.num_heads
        queries, keys = heads * own.size, own.count * own.size
        matrix, bias = partial(self.matrix, kind=self.kind), spec.qkv_bias
        gate = key = value = None
        if spec.output_gate and not spec.gate_apart:
            both = matrix(f"{at}.{QUERIES_AND_GATES}", 2 * queries, inputs, bias=bias)
            query, gate = both.part(range(queries)), both.part(range(queries, 2 * queries))
        else:
            query = matrix(f"{at}.q_proj", queries, inputs, bias=bias)
        if spec.gate_apart:
            gate = matrix(f"{at}.{GATES}", queries, inputs, bias=bias)
        if spec.head_gate:
            gate = matrix(f"{at}.{HEAD_GATES}", heads, inputs)
        if spec.reads is None:
            key = matrix(f"{at}.k_proj", keys, inputs, bias=bias)
            if not spec.values_of_keys:
                value = matrix(f"{at}.v_proj", keys, inputs, bias=bias)
        else:
            further.leave_keys(at)
        return LayerWeights(
            query=query,
            key=key,
            value=value,
            output=matrix(f"{at}.o_proj", hidden, queries, bias=spec.output_bias),
            blocks=None if spec.blocks is None else self._blocks(spec.blocks, at),
            output_gate=gate,
            value_norm=further.plain_norm(own.size) if spec.value_norm else None,
            sinks=self._part(f"{at}.sinks", self.vector(f"{at}.sinks.weight", heads))
            if spec.sinks
            else None,
        )

    def _blocks(self, spec: BlockIndexSpec, at: str) -> BlockIndexWeights:
        matrix = partial(self.matrix, inputs=self.config.hidden_size, kind=self.kind)
        return BlockIndexWeights(
            query=matrix(f"{at}.{INDEX_QUERY}", spec.heads * spec.size),
            key=matrix(f"{at}.{INDEX_KEY}", spec.size),
            query_norm=self._norms.norm(f"{at}.{INDEX_QUERY_NORM}", spec.size),
            key_norm=self._norms.norm(f"{at}.{INDEX_KEY_NORM}", spec.size),
        )

    def _recurrent(self, spec: RecurrentSpec, at: str) -> LayerWeights:
        config = self.config
        reader = RecurrentReader(self._packing, self.kind, config.hidden_size, config.norm.eps, at)
        return reader.read(spec)

    def _compressed(self, spec: AttentionSpec, own: CompressedSpec, at: str) -> LayerWeights:
        reader = CompressedReader(self.config, self.kind, self._packing, self._norms.norm, at)
        read = reader.read(own, self._further.plain_norm(self.config.head_dim))
        if not spec.sinks:
            return read
        return replace(read, sinks=self.vector(f"{at}.sinks.weight", self.config.num_heads))

    def _latent(self, spec: AttentionSpec, latent: LatentSpec, prefix: str) -> LayerWeights:
        config, hidden, bias = self.config, self.config.hidden_size, spec.qkv_bias
        matrix = partial(self.matrix, kind=self.kind)
        heads, rank = config.num_heads, latent.query_rank
        maps = per_head(self.weights, prefix, latent, heads, torch.float32)
        own, _ = self.split.own_heads(config)
        to_latents, to_values = (each[own.start : own.stop] for each in maps)
        output = matrix(f"{prefix}.o_proj", hidden, heads * latent.value, bias=spec.output_bias)
        return LayerWeights(
            output_gate=matrix(f"{prefix}.{HEAD_GATES}", heads, hidden) if spec.head_gate else None,
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
                index=self._index(spec.index, prefix, rank),
            ),
        )

    def _index(self, spec: IndexSpec | None, prefix: str, rank: int) -> IndexWeights | None:
        """rank: of the vector that queries are made of."""
        if spec is None or spec.shared:
            return None
        hidden, norm = self.config.hidden_size, f"{prefix}.{INDEX_KEY_NORM}"
        queries = spec.heads * spec.size
        return IndexWeights(
            query=self.matrix(f"{prefix}.{INDEX_QUERY}", queries, rank, kind=self.kind),
            key=self.matrix(f"{prefix}.{INDEX_KEY}", spec.size, hidden, kind=self.kind),
            key_norm=NormWeights(
                self.vector(f"{norm}.weight", spec.size),
                spec.eps,
                "layer",
                self.vector(f"{norm}.bias", spec.size),
            ),
            # A choice turns on small differences, and the matrix is small.
            weigher=self.matrix(
                f"{prefix}.{INDEX_WEIGHTS}", spec.heads, hidden, kind=MatrixKind.F32
            ),
        )

    def _latent_norm(self, name: str, size: int, latent: LatentSpec) -> NormWeights:
        return replace(self._norms.norm(name, size), eps=latent.eps)

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
        if spec.experts is None or spec.experts.beside:
            return self.sized(spec, at, spec.inner or self.config.intermediate_size)
        if not spec.experts.shared_inner:
            return {"gate": None, "up": None, "down": None}
        return self.sized(spec, f"{at}.shared_expert", spec.experts.shared_inner)

    def sized(
        self, spec: FeedForwardSpec, at: str, inner: int, width: int = 0
    ) -> FeedForwardMatrices:
        """width: of what it reads and writes; 0: the hidden size."""
        matrix = partial(self.matrix, kind=self.kind, bias=spec.bias)
        hidden = width or self.config.hidden_size
        return {
            "gate": matrix(f"{at}.gate_proj", inner, hidden) if spec.gated else None,
            "up": matrix(f"{at}.up_proj", inner, hidden),
            "down": matrix(f"{at}.down_proj", hidden, inner),
        }

    def vector(self, name: str, size: int) -> np.ndarray:
        return self._packing.vector(name, size)

    def matrix(
        self, name: str, outputs: int, inputs: int, *, kind: MatrixKind | None, bias: bool = False
    ) -> PackedMatrix:
        rows = self.split.rows(name, outputs)
        return self._packing.matrix(name, outputs, inputs, kind=kind, bias=bias, rows=rows)
