"""Operands of a step's phases other than matrices: norms, rotary tables, attention, experts, and
products for each head."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.structs import (
    PkAttention,
    PkByHead,
    PkEntries,
    PkExperts,
    PkMatrix,
    PkNorm,
)

_NORMS = {"rms": 1, "layer": 2}
SCORINGS = {"softmax": 0, "sigmoid": 1, "sqrt_softplus": 2, "sparse_mixer": 3, "given": 4}
"""Numbers of what makes scores of a router's products (PkScoring), by name."""
_LANES = 16
MAX_HEAD_DIM = 1024
MAX_INDEX_HEADS = 1024
INDEX_BLOCKS = (16, 32, 64, 128, 256)
"""Positions that a block of an index may have."""


@dataclass(frozen=True)
class NormWeights:
    """A normalisation of rows."""

    weight: np.ndarray
    """Factor of each number, [width] float32."""
    eps: float
    kind: str = "rms"
    """rms or layer."""
    bias: np.ndarray | None = None
    """[width] float32; of a layer norm."""

    def struct(self) -> PkNorm:
        return PkNorm(_NORMS[self.kind], self.eps, _address(self.weight), _address(self.bias))


@dataclass(frozen=True)
class RotationTable:
    """A rotary embedding of a head's first numbers."""

    cosines: np.ndarray
    """Cosines of the angles, [positions, numbers that rotate / 2] float32."""
    sines: np.ndarray
    """Sines of the angles, [positions, numbers that rotate / 2] float32."""
    query_factors: np.ndarray | None = None
    """[positions] float32: what rotated queries are multiplied by."""
    axes: np.ndarray | None = None
    """[numbers that rotate / 2] uint8: by which of a row's three positions each pair turns;
    None: by the token's."""

    def __post_init__(self) -> None:
        half = self.cosines.shape[1]
        if self.axes is not None and (self.axes.dtype != np.uint8 or self.axes.shape != (half,)):
            raise ValueError(
                f"axes are {self.axes.dtype} of {self.axes.shape}; {half} uint8 are needed"
            )


@dataclass(frozen=True)
class DistanceBiases:
    """What is added to scores by how far the key lies after the query."""

    values: np.ndarray
    """[heads, distances + 16] float32: distances are those from 1 - positions to positions - 1; the
    kernels read 16 numbers at a time, but use none of the last ones."""

    @staticmethod
    def of(values: np.ndarray) -> DistanceBiases:
        """`values`: [heads, distances] float32."""
        return DistanceBiases(np.pad(values, ((0, 0), (0, _LANES))))


@dataclass(frozen=True)
class DistanceProducts:
    """Keys and queries of distances: a score also gets the query times the key of the distance, and
    the key times the query of the distance."""

    keys: np.ndarray | None
    """[heads, head_dim, distances + 16] float32, as DistanceBiases; None: there are none."""
    queries: np.ndarray | None
    """Queries' side of the distances, shaped as `keys`."""

    @staticmethod
    def of(keys: np.ndarray | None, queries: np.ndarray | None) -> DistanceProducts:
        """`keys`, `queries`: [heads, distances, head_dim] float32; not both None."""
        turned = (
            None
            if each is None
            else np.ascontiguousarray(np.pad(each, ((0, 0), (0, _LANES), (0, 0))).swapaxes(1, 2))
            for each in (keys, queries)
        )
        return DistanceProducts(*turned)

    @property
    def width(self) -> int:
        """Numbers of a row, of all distances."""
        table = self.keys if self.keys is not None else self.queries
        return 0 if table is None else table.shape[2]


@dataclass(frozen=True)
class IndexShape:
    """What chooses the keys that a token reads. Sizes are element counts."""

    heads: int
    """Heads of a token's query."""
    size: int
    """Size of a head's query, and of a token's one key."""
    block: int = 0
    """Positions of a block, if blocks are chosen, each head for the queries of a KV head; 0: keys
    are chosen."""
    local: int = 0
    """Number of chosen blocks that are the token's own and those before it."""

    def obstacle(self) -> str | None:
        """Returns why the kernels can't run it, or None if they can."""
        if self.size % 16:
            return f"an index's keys have {self.size} numbers, not a multiple of 16"
        if self.size > MAX_HEAD_DIM:
            return f"an index's keys have {self.size} numbers; at most {MAX_HEAD_DIM} are possible"
        most = min(MAX_INDEX_HEADS, self.block or MAX_INDEX_HEADS)
        if self.heads > most:
            return f"an index has {self.heads} heads; at most {most} are possible"
        if self.block and self.block not in INDEX_BLOCKS:
            possible = ", ".join(map(str, INDEX_BLOCKS))
            return f"an index's blocks have {self.block} positions; {possible} are possible"
        return None


@dataclass(frozen=True)
class EntriesShape:
    """What a block has for entries that stand for several tokens each. Sizes are element counts."""

    rate: int
    """Tokens of an entry."""
    series: int
    """Values, and logits, that a token has for each number of an entry: 1 or 2."""
    head_dim: int
    """Size of an entry."""
    index_size: int = 0
    """Size of its key in the index; 0: there is no index."""

    @property
    def given(self) -> int:
        """Numbers that a token gives to entries."""
        return 2 * self.series * (self.head_dim + self.index_size)

    def kept(self, block_size: int) -> int:
        """Numbers of a block's entries, whose last tokens it has, with their keys."""
        entries = block_size if self.rate % block_size else 1
        if block_size % self.rate == 0:
            entries = block_size // self.rate
        return entries * (self.head_dim + self.index_size)


@dataclass(frozen=True, kw_only=True)
class CPUEntries:
    """Entries that a layer's tokens see besides those of the window."""

    shape: EntriesShape
    bias: np.ndarray
    """[rate, series * head_dim] float32: what is added to the logits of an entry's tokens."""
    norm: NormWeights
    """Norm of an entry, over its numbers."""
    most: int | None = None
    """A token reads so many at most, chosen by the index; None: all that it sees."""
    index_heads: int = 0
    index_bias: np.ndarray | None = None
    """[rate, series * index_size] float32."""
    index_norm: NormWeights | None = None

    def struct(self, kept: np.ndarray) -> PkEntries:
        """kept: memory of the layer's entries, [blocks, bytes] uint8. Raises ValueError for biases
        of another shape."""
        shape = self.shape
        return PkEntries(
            rate=shape.rate,
            series=shape.series,
            most=self.most or 0,
            index_heads=self.index_heads,
            index_dim=shape.index_size,
            bias=_address(self._checked(self.bias, shape.head_dim)),
            index_bias=_address(self._checked(self.index_bias, shape.index_size)),
            norm=self.norm.struct(),
            index_norm=PkNorm() if self.index_norm is None else self.index_norm.struct(),
            kept=_address(kept),
            block=kept.strides[0],
        )

    def _checked(self, bias: np.ndarray | None, size: int) -> np.ndarray | None:
        shape = (self.shape.rate, self.shape.series * size)
        if bias is not None and (bias.dtype != np.float32 or bias.shape != shape):
            raise ValueError(f"biases are {bias.dtype} {bias.shape}; float32 {shape} are needed")
        return bias


@dataclass(frozen=True)
class Attention:
    """Attention of a layer."""

    layer: int
    """Which of the KV cache's layers it has, unless `place` says it; tells attentions apart. Those
    of an encoder share some, as its keys are not read again."""
    heads: int
    kv_heads: int
    head_dim: int
    latent_dim: int | None = None
    """Numbers of a value, which is a latent; None: head_dim, and values are made by themselves."""
    rotation: RotationTable | None = None
    scale: float | None = None
    """Factor of query times key; None: head_dim ** -0.5."""
    soft_cap: float | None = None
    window: int | None = None
    """A token sees itself and the window - 1 tokens before it."""
    chunk: int | None = None
    """A token sees the tokens before it in its own run of so many positions."""
    through: int | None = None
    """A token sees the sequence's first keys alone, so many."""
    most: int | None = None
    """A token reads so many keys at most, chosen by the index of this layer or of one before it;
    None: all that it sees. Keys that aren't chosen in blocks are those of latents."""
    index: IndexShape | None = None
    """The layer's own index."""
    sinks: np.ndarray | None = None
    """Logit of each head's attention sink, [heads] float32; None without sinks."""
    entries: CPUEntries | None = None
    """What a token sees besides the tokens of its window; None: nothing."""
    biases: DistanceBiases | None = None
    distances: DistanceProducts | None = None
    """Not together with biases, and only of a cache of float32."""
    both_ways: bool = False
    """Whether a token sees those after it as well, in a window of as many."""
    causal: bool = False
    """Whether a token sees no further than itself, whatever a step says (GivenRows.last_seen)."""
    norms_behind: bool = False
    """Whether norms of queries and keys stand after the rotation."""
    group: int = 0
    """Which of the groups of layers that have a block table of their own the layer is in."""
    place: int | None = None
    """Which of the KV cache's layers it has, with no other of its group; None: that of its
    number."""

    @property
    def cache_layer(self) -> int:
        return self.layer if self.place is None else self.place

    @property
    def value_dim(self) -> int:
        return self.latent_dim or self.head_dim

    def struct(
        self, keys: np.ndarray, values: np.ndarray, kept: np.ndarray | None = None
    ) -> PkAttention:
        """keys, values, kept: the memory of that layer of the cache, [blocks, bytes] uint8; of
        entries, the last one. What is returned holds what it refers to."""
        scale = self.scale
        if scale is None:
            scale = float(np.float32(1) / np.sqrt(np.float32(self.head_dim)))
        turn, shifts, apart = self.rotation, self.biases, self.distances
        width = shifts.values.shape[1] if shifts is not None else apart.width if apart else 0
        own = None if self.entries is None or kept is None else self.entries.struct(kept)
        return PkAttention(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            rotary_dims=0 if turn is None else 2 * turn.cosines.shape[1],
            window=self.window or 0,
            chunk=self.chunk or 0,
            both_ways=self.both_ways,
            causal=self.causal,
            through=self.through or 0,
            most=self.most or 0,
            index_heads=0 if self.index is None else self.index.heads,
            index_dim=0 if self.index is None else self.index.size,
            block=0 if self.index is None else self.index.block,
            local=0 if self.index is None else self.index.local,
            norms_behind=self.norms_behind,
            group=self.group,
            scale=scale,
            soft_cap=self.soft_cap or 0.0,
            cosines=None if turn is None else _address(turn.cosines),
            sines=None if turn is None else _address(turn.sines),
            sinks=_address(self.sinks),
            query_factors=None if turn is None else _address(turn.query_factors),
            axes=None if turn is None else _address(turn.axes),
            keys=_address(keys),
            values=_address(values),
            key_block=keys.strides[0],
            value_block=values.strides[0],
            biases=None if shifts is None else _address(shifts.values),
            biases_width=width,
            biases_middle=max(0, width - _LANES) // 2,
            distance_keys=None if apart is None else _address(apart.keys),
            distance_queries=None if apart is None else _address(apart.queries),
            entries=None if own is None else ctypes.pointer(own),
        )


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts."""

    active: int
    """Experts of a row."""
    ups: tuple[PackedMatrix, ...]
    """The up matrix of each expert. One that another rank computes has matrices without tiles."""
    downs: tuple[PackedMatrix, ...]
    gates: tuple[PackedMatrix, ...] = ()
    """The gate matrix of each expert; empty for experts without a gate."""
    scoring: str = "softmax"
    """What makes scores of the router's products, of SCORINGS. sparse_mixer: one choice after
    another, the best product that is left has its softmax over those left that are near it.
    given: they are scores already; `by_token` chooses."""
    nearness: float = 0.0
    """How far below the best one is near it (sparse_mixer), as a share of the larger of the best
    one and the other's size."""
    normalised: bool = True
    weighs_input: bool = False
    """Whether a share is a factor of the expert's input, instead of its result."""
    scale: float = 1.0
    sum_floor: float = 1e-20
    """Number that is added to the sum of the chosen scores, where they are normalised."""
    groups: int = 1
    active_groups: int = 1
    group_best: int = 2
    """How many of a group's experts make its score: 1 or 2."""
    correction: np.ndarray | None = None
    """What is added to each expert's score for the choice alone, [experts] float32; None for
    nothing."""
    scales: np.ndarray | None = None
    """[experts] float32: factors of the chosen experts' shares."""
    by_token: np.ndarray | None = None
    """[tokens, active] int32, each below the number of experts and once in its row: the experts of
    each token id. None: scores choose."""

    def struct(self) -> PkExperts:
        return PkExperts(
            count=len(self.ups),
            active=self.active,
            groups=self.groups,
            active_groups=self.active_groups,
            group_best=self.group_best,
            scoring=SCORINGS[self.scoring],
            normalised=self.normalised,
            weighs_input=self.weighs_input,
            scale=self.scale,
            sum_floor=self.sum_floor,
            nearness=self.nearness,
            correction=_address(self.correction),
            gates=_array(self.gates) if self.gates else None,
            ups=_array(self.ups),
            downs=_array(self.downs),
            scales=_address(self.scales),
            by_token=_address(self.by_token),
            tokens=0 if self.by_token is None else len(self.by_token),
        )


@dataclass(frozen=True, kw_only=True)
class ByHead:
    """A product of its own for each head. A head's numbers begin at its multiple of a stride."""

    matrices: tuple[PackedMatrix, ...]
    source_stride: int
    target_stride: int
    source_first: int = 0
    target_first: int = 0
    query_factors: np.ndarray | None = None
    """Factor of a row's outputs at each position, [positions] float32."""

    def struct(self) -> PkByHead:
        return PkByHead(
            count=len(self.matrices),
            source_stride=self.source_stride,
            source_first=self.source_first,
            target_stride=self.target_stride,
            target_first=self.target_first,
            matrices=_array(self.matrices),
            query_factors=_address(self.query_factors),
        )


def _array(matrices: tuple[PackedMatrix, ...]) -> ctypes.Array[PkMatrix]:
    return (PkMatrix * len(matrices))(*(each.struct for each in matrices))


def _address(array: np.ndarray | None) -> int | None:
    return None if array is None else int(array.ctypes.data)
