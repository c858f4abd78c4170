"""Weights in the CPU kernels' layout, by what they are in a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from penstock.model.rope_spec import RopeSpec
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.operands import CPUEntries, NormWeights, RotationTable
from penstock_kernels.cpu.recurrent import Recurrent
from penstock_kernels.cpu.streams import CPUMixing, CPUStreams
from penstock_worker.layers.feed_forward import Coefficients
from penstock_worker.layers.rotary_tables import AngleTables


class FeedForwardMatrices(TypedDict):
    """Matrices of a feed-forward, by their fields in LayerWeights."""

    gate: PackedMatrix | None
    up: PackedMatrix | None
    down: PackedMatrix | None


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """Weights of a mixture of experts."""

    router: PackedMatrix
    ups: tuple[PackedMatrix, ...]
    downs: tuple[PackedMatrix, ...]
    gates: tuple[PackedMatrix, ...] = ()
    """The gate matrix of each expert; empty for experts without a gate."""
    correction: np.ndarray | None = None
    """[experts] float32, added for choosing only."""
    shared_gate: PackedMatrix | None = None
    """A matrix with one output: the logit of the weight of the expert that every token has."""
    scales: np.ndarray | None = None
    """[experts] float32: factors of the chosen experts' shares."""
    by_token: np.ndarray | None = None
    """[vocab, active] int32: the experts of each token id; None: scores choose."""
    latent_down: PackedMatrix | None = None
    """Makes what experts read of the hidden state; `latent_up` leads back. None: they read the
    hidden state."""
    latent_up: PackedMatrix | None = None
    ranks: tuple[int, ...] = ()
    """Rank that computes each expert; empty: all are here, or a part of each."""

    @property
    def tiles(self) -> dict[int, int]:
        """Returns the bytes of each expert that is here, by its number."""
        each = (self.ups, self.downs, self.gates) if self.gates else (self.ups, self.downs)
        sizes = enumerate(sum(matrix.size for matrix in own) for own in zip(*each, strict=True))
        return {number: size for number, size in sizes if not self.downs[number].absent}

    @property
    def inner(self) -> int:
        """Numbers between up and down of an expert."""
        return int(self.downs[0].struct.inputs)


@dataclass(frozen=True, kw_only=True)
class IndexWeights:
    """Weights of an index of tokens."""

    query: PackedMatrix
    """Makes all heads' queries of the vector that attention's queries are made of."""
    key: PackedMatrix
    """Makes a token's key of the hidden state."""
    key_norm: NormWeights
    weigher: PackedMatrix
    """Makes the heads' weights of the hidden state."""


@dataclass(frozen=True, kw_only=True)
class BlockIndexWeights:
    """Weights of an index of blocks. Both matrices read the hidden state."""

    query: PackedMatrix
    key: PackedMatrix
    query_norm: NormWeights
    """Norm of each head's query."""
    key_norm: NormWeights


@dataclass(frozen=True, kw_only=True)
class LatentWeights:
    """Weights of attention over latents, besides those that make queries and the output."""

    down: PackedMatrix
    """Makes a token's latent, and after it what rotates."""
    norm: NormWeights
    to_latents: tuple[PackedMatrix, ...]
    """A head's map of the part of a query that doesn't rotate."""
    to_values: tuple[PackedMatrix, ...]
    """A head's map of latents."""
    query_down: PackedMatrix | None = None
    """Makes the vector that queries are made of; None: they are made of the hidden state."""
    query_norm: NormWeights | None = None
    """Norm of that vector."""
    index: IndexWeights | None = None
    """What chooses the tokens that attention reads, if the layer does so."""


@dataclass(frozen=True, kw_only=True)
class CompressedWeights:
    """Weights of attention whose tokens see entries that stand for several of them, besides those
    that make queries, and the output of what groups of heads give."""

    query_down: PackedMatrix
    """Makes the vector that queries are made of."""
    query_norm: NormWeights
    """Norm of that vector."""
    head_norm: NormWeights
    """Norm of each head's query."""
    key: PackedMatrix
    key_norm: NormWeights
    by_group: tuple[PackedMatrix, ...]
    """Makes of what each group of heads gives what the output is made of."""
    entries: CPUEntries | None = None
    given: tuple[PackedMatrix, ...] = ()
    """Make what a token gives to entries: values, logits, and both for the index."""
    index_query: PackedMatrix | None = None
    """Makes the index's queries of the vector that attention's are made of."""
    index_weigher: PackedMatrix | None = None
    """Makes the weights of the index's heads of the hidden state."""


@dataclass(frozen=True, kw_only=True)
class BesideNorms:
    """Norms of experts that run in parallel with a feed-forward."""

    router: NormWeights
    """Norm before the router."""
    experts: NormWeights
    """Norm before the experts."""
    experts_output: NormWeights
    dense_output: NormWeights


@dataclass(frozen=True, kw_only=True)
class LayerInputsWeights:
    """What makes the inputs that layers have of their own."""

    table: PackedMatrix
    """A row for each token id: all layers' inputs, side by side."""
    projection: PackedMatrix
    """Makes as many numbers of an embedding."""
    norm: NormWeights
    """Norm of what is projected, over a layer's numbers."""
    size: int
    """Numbers of a layer."""


@dataclass(frozen=True, kw_only=True)
class LayerInputWeights:
    """What a layer makes of its own input."""

    gate: PackedMatrix
    projection: PackedMatrix
    norm: NormWeights
    """Norm of what is projected."""


@dataclass(frozen=True, kw_only=True)
class StreamEndsWeights:
    """What makes several residuals of one, and one of several."""

    beginnings: tuple[PackedMatrix, ...]
    """A matrix for each stream but the first, as in `endings`."""
    endings: tuple[PackedMatrix, ...]


@dataclass(frozen=True, kw_only=True)
class StreamLayerWeights:
    """What a layer does with several residuals, and the low-rank path parallel to its attention."""

    coefficients: CPUStreams
    router_norm: NormWeights
    path_down: PackedMatrix
    path_up: PackedMatrix
    path_norm: NormWeights


@dataclass(frozen=True)
class FurtherFeatures:
    """What makes features of other ones."""

    matrix: PackedMatrix
    source: int
    """Column of its first input."""
    first: int
    """Column of its first output."""
    norm: NormWeights | None = None
    """Norm of its inputs."""


@dataclass(frozen=True, kw_only=True)
class RecurrentWeights:
    """What stands in the attention's place in a recurrent layer, but for the product that makes its
    output."""

    products: tuple[tuple[PackedMatrix, int], ...]
    """What makes features of the hidden state, each with the column of its first output."""
    further: tuple[FurtherFeatures, ...] = ()
    """What makes features of some of these."""
    of_convolved: bool = False
    """Whether those are made of features that are convolved already."""
    features: int
    """Columns of all features."""
    layer: Recurrent
    """Everything but the products. A program says its place among the states."""


@dataclass(frozen=True, kw_only=True)
class CrossWeights:
    """Weights of attention to an encoder's output."""

    norm: NormWeights
    """Norm before this attention."""
    query: PackedMatrix
    key: PackedMatrix
    """Makes keys of the encoder's rows; `value` makes their values."""
    value: PackedMatrix
    output: PackedMatrix


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Weights of a layer. A norm that the layer doesn't have is None."""

    query: PackedMatrix | None = None
    output: PackedMatrix | None = None
    """Output projection of attention, or of what stands in its place."""
    key: PackedMatrix | None = None
    """The key matrix. None without `latent`: the layer reads another layer's keys and values."""
    value: PackedMatrix | None = None
    """The value matrix. None with `key`: values are made of keys."""
    latent: LatentWeights | None = None
    """Weights of latent attention, in place of `key` and `value`."""
    compressed: CompressedWeights | None = None
    """Weights of attention to entries that stand for several tokens, in place of `key` and
    `value`."""
    blocks: BlockIndexWeights | None = None
    """What chooses the blocks of positions that attention reads."""
    output_gate: PackedMatrix | None = None
    """Makes the gates of what attention gives: one for each number, or one for each head."""
    recurrent: RecurrentWeights | None = None
    """Weights of a recurrent layer, in place of attention."""
    recurrent_output: PackedMatrix | None = None
    """Output projection of the recurrent layer, where it runs in parallel with attention."""
    up: PackedMatrix | None = None
    """Matrix of the feed-forward, or of the expert that every token has; so are `down` and
    `gate`."""
    down: PackedMatrix | None = None
    gate: PackedMatrix | None = None
    coefficients: Coefficients | None = None
    """The coefficients of the feed-forward's activation, if it has some."""
    experts: ExpertWeights | None = None
    attention_norm: NormWeights | None = None
    feed_forward_norm: NormWeights | None = None
    attention_output_norm: NormWeights | None = None
    feed_forward_output_norm: NormWeights | None = None
    query_norm: NormWeights | None = None
    key_norm: NormWeights | None = None
    value_norm: NormWeights | None = None
    mixed_norm: NormWeights | None = None
    """Norm of what all heads give together."""
    inner_norm: NormWeights | None = None
    """Norm of the feed-forward's inner values."""
    sinks: np.ndarray | None = None
    """Logit of each head's attention sink, [heads] float32; None without sinks."""
    beside: BesideNorms | None = None
    """Norms of experts parallel to a feed-forward."""
    own_input: LayerInputWeights | None = None
    output_scale: float = 1.0
    streams: StreamLayerWeights | None = None
    """Weights of a model with several residuals."""
    mixing: tuple[CPUMixing, CPUMixing] | None = None
    """How both halves mix several residuals."""
    cross: CrossWeights | None = None
    """Attention to the encoder's output, in an encoder-decoder model."""
    beside_embedding: bool = False
    """Whether attention reads what stands in MIXED: of a head that drafts (see HeadConfig)."""

    @property
    def experts_over_latents(self) -> bool:
        return self.experts is not None and self.experts.latent_down is not None


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """Weights of a model, or of a rank's part of it."""

    layers: Sequence[LayerWeights]
    """Layers of the rank's stage."""
    embedding: PackedMatrix | None
    """Token embeddings, which the first stage has; None: it is another stage."""
    head: PackedMatrix | None
    """Output head, which the last stage has; so is `norm`. None: it is another stage."""
    norm: NormWeights | None
    """Norm after the last layer."""
    rotations: Sequence[RotationTable]
    """One for each of ModelConfig.ropes."""
    embedding_norm: NormWeights | None = None
    layer_inputs: LayerInputsWeights | None = None
    streams: StreamEndsWeights | None = None
    mixing: CPUMixing | None = None
    """How several residuals are read after the last layer."""
    positions: PackedMatrix | None = None
    """A row for each of a sequence's positions; None: embeddings say nothing of these."""
    types: PackedMatrix | None = None
    """A row for each token type."""
    projection: PackedMatrix | None = None
    """Makes the layers' rows of embeddings of another size."""


def rotation_table(tables: AngleTables, spec: RopeSpec) -> RotationTable:
    return RotationTable(
        *tables,
        np.array(spec.axes, dtype=np.uint8) if spec.axes else None,
    )
