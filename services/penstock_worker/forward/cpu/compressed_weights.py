"""Packs the weights of attention whose tokens see entries that stand for several of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.model.attention_spec import CompressedSpec
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import KVLayout, compressed_specs
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix
from penstock_kernels.cpu.operands import CPUEntries, EntriesShape, NormWeights
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.weights import CompressedWeights, LayerWeights
from penstock_worker.layers.compressed_attention import INDEX, POSITION_BIAS


def entries_shape(spec: CompressedSpec, head_dim: int) -> EntriesShape | None:
    """What a block has for a layer's entries; None: the layer has none."""
    if not spec.rate:
        return None
    index = 0 if spec.index is None else spec.index.size
    return EntriesShape(spec.rate, spec.series, head_dim, index)


def places_of(config: ModelConfig, layout: KVLayout, layers: range) -> tuple[tuple[int, int], ...]:
    """Each layer's group, and which of the cache's layers it has (see KVLayout.places). Where
    layers have entries, each has one of its own."""
    if not any(spec.rate for spec in compressed_specs(config)):
        return layout.places(layers)
    return tuple((group, number) for number, group in enumerate(layout.layers))


@dataclass(frozen=True)
class CompressedReader:
    """Reads one layer, which one rank has as a whole."""

    config: ModelConfig
    kind: MatrixKind | None
    """Kind of matrices that are multiplied; None: each as the file has it."""
    packing: CPUPacking
    norm: Callable[..., NormWeights]
    """Makes a norm's weights of a name and a size."""
    at: str
    """What the layer's names begin with."""

    def read(self, spec: CompressedSpec, head_norm: NormWeights) -> LayerWeights:
        """`head_norm`: of each head's query."""
        config = self.config
        head, hidden, rank = config.head_dim, config.hidden_size, spec.query_rank
        wide, index, index_query, weigher = config.num_heads * head, spec.index, None, None
        if index is not None:
            index_query = self._matrix(f"{INDEX}.q_b_proj", index.heads * index.size, rank)
            # A choice turns on small differences, and the matrix is small.
            name = f"{self.at}.{INDEX}.scorer.weights_proj"
            weigher = self.packing.matrix(name, index.heads, hidden, kind=MatrixKind.F32)
        return LayerWeights(
            query=self._matrix("q_proj", wide, rank),
            output=self._matrix("o_proj", hidden, spec.groups * spec.group_rank),
            compressed=CompressedWeights(
                query_down=self._matrix("q_a_proj", rank, hidden),
                query_norm=self.norm(f"{self.at}.q_a_norm", rank),
                head_norm=head_norm,
                key=self._matrix("kv_proj", head, hidden),
                key_norm=self.norm(f"{self.at}.kv_norm", head),
                by_group=self._by_group(spec, wide // spec.groups),
                entries=self._entries(spec, entries_shape(spec, head)),
                given=self._given(spec),
                index_query=index_query,
                index_weigher=weigher,
            ),
        )

    def _by_group(self, spec: CompressedSpec, inputs: int) -> tuple[PackedMatrix, ...]:
        """The file has one matrix, of which each group's outputs follow one another."""
        total, rank = spec.groups * spec.group_rank, spec.group_rank
        return tuple(
            self._matrix("o_a_proj", total, inputs, rows=range(first, first + rank))
            for first in range(0, total, rank)
        )

    def _entries(self, spec: CompressedSpec, shape: EntriesShape | None) -> CPUEntries | None:
        if shape is None:
            return None
        own, index = f"{self.at}.compressor", spec.index
        found = CPUEntries(
            shape=shape,
            bias=self._bias(own, spec, shape.head_dim),
            norm=self.norm(f"{own}.kv_norm", shape.head_dim),
        )
        if index is None:
            return found
        at = f"{self.at}.{INDEX}"
        return CPUEntries(
            shape=shape,
            bias=found.bias,
            norm=found.norm,
            most=index.most,
            index_heads=index.heads,
            index_bias=self._bias(at, spec, index.size),
            index_norm=self.norm(f"{at}.kv_norm", index.size),
        )

    def _given(self, spec: CompressedSpec) -> tuple[PackedMatrix, ...]:
        if not spec.rate:
            return ()
        of = [("compressor", self.config.head_dim)]
        if spec.index is not None:
            of.append((INDEX, spec.index.size))
        hidden = self.config.hidden_size
        return tuple(
            self._matrix(f"{name}.{part}", spec.series * size, hidden)
            for name, size in of
            for part in ("kv_proj", "gate_proj")
        )

    def _bias(self, prefix: str, spec: CompressedSpec, size: int) -> np.ndarray:
        return self.packing.tensor(f"{prefix}.{POSITION_BIAS}", (spec.rate, spec.series * size))

    def _matrix(
        self, name: str, outputs: int, inputs: int, rows: range | None = None
    ) -> PackedMatrix:
        return self.packing.matrix(f"{self.at}.{name}", outputs, inputs, kind=self.kind, rows=rows)
