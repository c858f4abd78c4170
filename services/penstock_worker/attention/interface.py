"""The interface of a paged KV cache and of the attention over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch

from penstock.errors import StartupError
from penstock.model.attention_spec import CompressedSpec, IndexSpec, KVHeadsSpec
from penstock.model.block_index_spec import BlockIndexSpec
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import (
    ONE_GROUP,
    KVGroup,
    KVLayout,
    compressed_specs,
    layers_that_read,
    one_group,
)
from penstock.model.mechanisms import COMPRESSED, OWN_HEADS

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a KV cache."""

    num_layers: int
    """Layers that a block has room for."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per block."""
    dtype: torch.dtype
    """Dtype of the stored keys and values. int8 has a float32 scale per head for each token's key
    and value."""
    value_in_key: int | None = None
    """A value is the last so many numbers of its key, and isn't stored again; None: it is."""
    index: IndexSpec | BlockIndexSpec | None = None
    """The index whose keys, one for each token, are stored besides, in all layers, though some may
    have none; None: there is none."""
    compressed: tuple[CompressedSpec, ...] = ()
    """What each layer stores besides for entries that stand for several tokens; empty: nothing.
    Entries themselves are in blocks of the first group (see penstock.model.compressed_kv)."""
    groups: tuple[KVGroup, ...] = ONE_GROUP
    """Groups of layers, each with a block table of its own."""
    places: tuple[tuple[int, int], ...] | None = None
    """For each layer of the model its group, and which of the cache's layers it has, together with
    layers of other groups, whose blocks are others; None: that of its own number."""
    query_heads: frozenset[int] = frozenset()
    """How many query heads layers have that don't have `num_heads`."""
    heads_of_layers: tuple[KVHeadsSpec, ...] = ()
    """Key and value heads of each layer, where they differ; empty: all are as said above. A block
    has room for the widest in each of its layers."""

    def place(self, layer: int) -> tuple[int, int]:
        """Returns the layer's entry of `places`."""
        return (0, layer) if self.places is None else self.places[layer]

    @staticmethod
    def of(
        config: ModelConfig,
        block_size: int,
        dtype: torch.dtype,
        layout: KVLayout | None = None,
        layers: range | None = None,
    ) -> CacheShape:
        """Returns the shape for this model, or for this rank's shard of one, which has `layers` of
        it. `layout`: of the whole model; None: one group. Raises StartupError for a dtype that
        isn't served for layers with heads of different sizes."""
        if layout is None:
            layout = one_group(config.num_layers, layers_that_read(config))
        own = layers or range(config.num_layers)
        compressed = compressed_specs(config)
        if dtype == torch.int8 and compressed:
            raise StartupError(
                f"kv_cache_dtype is int8, which is not served for {COMPRESSED}; auto is"
            )
        heads = tuple(map(config.kv_heads, range(config.num_layers)))
        if dtype == torch.int8 and len(set(heads)) > 1:
            raise StartupError(
                f"kv_cache_dtype is int8, which is not served for {OWN_HEADS}; auto is"
            )
        return CacheShape(
            num_layers=layout.page_layers(own),
            num_heads=config.num_heads,
            num_kv_heads=heads[0].count,
            head_dim=heads[0].size,
            block_size=block_size,
            dtype=dtype,
            value_in_key=config.value_in_key,
            index=config.index,
            compressed=compressed,
            groups=layout.groups,
            places=layout.places(own),
            query_heads=frozenset(
                each.attention.query_heads
                for each in config.layers
                if each.attention.query_heads is not None
            ),
            heads_of_layers=heads if len(set(heads)) > 1 else (),
        )


@dataclass(frozen=True)
class BatchLayout:
    """The sequences of one step. Rows of the step's tensors are those of the sequences in order;
    rows beyond the sum of counts are padding."""

    block_tables: Sequence[np.ndarray]
    """Each sequence's KV blocks in token order (int64), enough for its tokens."""
    starts: np.ndarray
    """[sequences], tokens computed before."""
    counts: np.ndarray
    """[sequences], tokens computed in this step, each at least 1."""
    more_tables: tuple[Sequence[np.ndarray], ...] = ()
    """Block tables of all sequences, as `block_tables` has them, for each further KV group (see
    Batch)."""
    last_seen: np.ndarray | None = None
    """[rows without padding] int64: the last position that each row sees; None: its own."""
    between: np.ndarray | None = None
    """[rows without padding] bool: rows that see none after themselves, whatever `last_seen` says,
    and that no row before them sees; None: there are none."""

    @property
    def tables(self) -> tuple[Sequence[np.ndarray], ...]:
        """Block tables of each group."""
        return self.block_tables, *self.more_tables

    @cached_property
    def positions(self) -> np.ndarray:
        """[rows without padding] int64, the position of each row in its sequence."""
        first = np.cumsum(self.counts) - self.counts
        return np.arange(self.counts.sum()) - np.repeat(first - self.starts, self.counts)


@dataclass(frozen=True)
class Rotation:
    """The rotary tables, and the positions of a step's rows in them."""

    cos: Tensor
    """[positions, dims / 2] float32, for every position. The first `dims` numbers of a head
    rotate."""
    sin: Tensor
    """[positions, dims / 2] float32, for every position."""
    positions: Tensor
    """Position of each row in its sequence, [rows] int64."""
    query_factors: Tensor | None = None
    """[positions] float32: what rotated queries are multiplied by."""

    def grown(self, query: Tensor) -> Tensor:
        """Returns rotated queries, [rows, heads, head_dim], times their positions' factors."""
        if self.query_factors is None:
            return query
        factors = self.query_factors[self.positions][:, None, None]
        return (query.float() * factors).to(query.dtype)

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of each row, [rows, dims / 2]."""
        return self.cos[self.positions], self.sin[self.positions]


@dataclass(frozen=True)
class SectionedRotation(Rotation):
    """Some pairs turn by a row's time, others by its row in a picture or by its column (Wang et
    al., "Qwen2-VL", 2024)."""

    by_time: Tensor = field(kw_only=True)
    """Positions of each row along time, height and width, [3, rows] int64."""
    axes: Tensor = field(kw_only=True)
    """[dims / 2] int64: which of the three numbers each pair turns by."""

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        return self._composed(self.cos), self._composed(self.sin)

    @cached_property
    def by_row(self) -> Rotation:
        """The rotation by tables that have a place for each of the step's rows."""
        cos, sin = (each.contiguous() for each in self.rows)
        return Rotation(cos, sin, torch.arange(len(cos), device=cos.device))

    def _composed(self, table: Tensor) -> Tensor:
        pairs = torch.arange(len(self.axes), device=table.device)
        return table[self.by_time[self.axes].T, pairs]


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms over each query and key head."""

    query: Tensor
    """Weights, [head_dim]."""
    key: Tensor
    """Weights, [head_dim]."""
    eps: float
    behind: bool = False
    """Whether they come after the rotation."""


@dataclass(frozen=True)
class ScoreRule:
    """How a layer turns products of queries and keys into weights."""

    scale: float | None = None
    """Factor of scores; None for head_dim ** -0.5."""
    window: int | None = None
    """A token sees itself and the window - 1 tokens before it; None: all before it."""
    chunk: int | None = None
    """A token sees the tokens before it within its chunk of positions [n * chunk, (n + 1) *
    chunk)."""
    soft_cap: float | None = None
    """Scaled scores x become soft_cap * tanh(x / soft_cap)."""
    sinks: Tensor | None = None
    """[heads] float32: a score of each head that takes part in the softmax without a value."""
    chosen: bool = False
    """A token sees of those only the ones that the step's last choice has (see ChoosingAttention
    and BlockChoosingAttention)."""
    causal: bool = False
    """Causal whatever the layout's last_seen says: a token sees none after itself."""


PLAIN_RULE = ScoreRule()


class StepAttention(Protocol):
    """Attention for one step's batch. Called by each layer in turn."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
        rule: ScoreRule = PLAIN_RULE,
    ) -> Tensor:
        """Normalises and rotates queries and keys, stores keys and values in the layer's cache,
        then attends to the tokens of each sequence that the rule lets them see. Causal.

        `query` is [rows, heads, head_dim]; `key` and `value` are [rows, kv_heads, head_dim], or
        have no heads: then the layer reads what another one has stored in the same place. The heads
        of a row are contiguous. Any float dtype is allowed, and is that of the result. Where the
        cache's values are parts of keys, `value` isn't read.

        Returns [rows, heads, size of a value], in which padding rows are zero. Modifies the cache
        in the slots of the step's tokens only. The rows of a sequence have the same bits whatever
        else is in the batch, however its tokens were divided into chunks, and for every block
        size.
        """


@dataclass(frozen=True)
class IndexRows:
    """What an index makes of a step's rows, before the rotation."""

    query: Tensor
    """[rows, heads, size]."""
    key: Tensor
    """[rows, 1, size]."""
    weights: Tensor
    """[rows, heads]."""


@runtime_checkable
class ChoosingAttention(StepAttention, Protocol):
    """Attention that reads chosen tokens, if a rule says so."""

    def choose(self, layer: int, rows: IndexRows, rotation: Rotation, most: int) -> None:
        """Rotates the rows' queries and keys, stores keys in the layer's cache, and chooses for
        each row the `most` tokens that it reads, which holds until the next choice (see
        penstock_kernels.reference.choosing). A row's choice depends on its sequence alone."""


@runtime_checkable
class BlockChoosingAttention(StepAttention, Protocol):
    """Attention that reads chosen blocks of positions, if a rule says so."""

    def choose_blocks(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        rotation: Rotation,
        norms: HeadNorms,
        index: BlockIndexSpec,
    ) -> None:
        """Normalises and rotates an index's queries, [rows, heads, size], and keys, [rows, 1,
        size], stores keys in the layer's cache, and chooses for each row the blocks that it reads,
        which holds until the next choice (see penstock_kernels.reference.choosing). A row's choice
        depends on its sequence alone."""


@dataclass(frozen=True)
class EntryParts:
    """What entries are made of."""

    rows: Tensor
    """[entries, tokens, numbers]: what each token has given."""
    there: Tensor
    """[entries, tokens] bool: which tokens there are."""
    firsts: Tensor
    """[entries] int64: position of the first token that an entry stands for."""


@dataclass(frozen=True)
class Entries:
    """Entries of a layer, and their keys in its index."""

    entries: Tensor
    """[entries, head_dim], rotated."""
    keys: Tensor | None = None
    """[entries, size], rotated; None: the layer has no index."""


class CompressedAttention(Protocol):
    """Attention to tokens and entries (see CompressedSpec) for one step's batch."""

    def give(self, layer: int, rows: Tensor) -> EntryParts:
        """Stores what the step's tokens give to entries, [rows, numbers]. Returns the parts of all
        entries whose last token is among them, as they are stored."""

    def store(self, layer: int, entries: Entries) -> None:
        """Stores these entries, in the order in which `give` has returned their parts."""

    def choose(self, layer: int, query: Tensor, weights: Tensor, index: IndexSpec) -> Tensor:
        """Returns which entries each row reads, [rows, entries] bool, as choose_tokens does (see
        penstock_kernels.reference.choosing). `query` is [rows, heads, size], rotated, `weights`
        [rows, heads]."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, rule: ScoreRule, chosen: Tensor | None
    ) -> Tensor:
        """Stores keys of the step's tokens, [rows, 1, head_dim], and attends to what each row sees
        of tokens and entries; of these, if given, to those that are `chosen`. `query` is [rows,
        heads, head_dim]; both are rotated. Returns [rows, heads, head_dim], in which padding rows
        are zero. Bits depend on a row's sequence alone, as StepAttention's do."""


@runtime_checkable
class CompressingAttention(StepAttention, Protocol):
    """Attention of a model whose layers see entries."""

    def compressed(self) -> CompressedAttention:
        """Raises ValueError if the cache has no entries."""


class AttentionBackend(Protocol):
    """A paged KV cache and its kernels. Made once, after the weights; owns the cache's memory.

    The constructor allocates num_blocks blocks (and what else it needs). It raises MemoryError or
    torch's RuntimeError if there is no room.
    """

    name: ClassVar[str]

    def __init__(self, shape: CacheShape, num_blocks: int) -> None: ...

    @staticmethod
    def block_bytes(shape: CacheShape) -> int:
        """Returns the size of one block over the layers that it has room for."""

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns views of the cache, each [blocks, bytes] uint8. Row b of all of them together is
        block b."""

    def plan(self, layout: BatchLayout) -> StepAttention:
        """Prepares one step, without access to the cache. The runner calls it once per step."""
