"""The shapes to which steps are padded, each of which has a CUDA graph.

Decodes have buckets by sequences and contexts. Steps that have prompts' chunks, or drafted tokens,
among decodes have buckets by rows: what such a step has of each kind doesn't matter, as its tiles
of queries are in lists that have room for any division of the rows into sequences, and those that
aren't needed end at once. Only where partial results of attention don't fit one launch, a longer
context has graphs of its own, as decodes have.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from penstock.model.config import ModelConfig
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.tiles import KEY_SPLIT, PARTIAL_BYTES
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.padded_inputs import (
    DecodeInputs,
    InputSizes,
    MixedInputs,
    decodes_text,
    is_text,
)

MAX_GRAPHS = 128
"""Graphs of decodes that are captured at most: a third of a second of a large model's loading for
every ten of them, and GRAPH_BYTES each."""
GRAPH_BYTES = 4 << 20
"""Estimated bytes of a captured graph without its activations, which share one pool. The size of
the KV cache allows for it."""
TABLE_BYTES = 1 << 20
"""Most bytes of block tables, which a step copies to the device in some 40 microseconds while the
step before it runs."""


MIXED_ROWS = (16, 32, 64, 128, 256, 384, 512)
"""Up to 256 rows a step mostly reads weights, and padding costs little; beyond, it multiplies. More
than 512 keep a device busy for longer than the host takes to launch them one by one."""
MIXED_GRAPHS = 32
"""Most graphs that are captured in addition to those of decodes. Where shapes are more, those of
the shortest contexts share the graphs of longer ones."""


@dataclass(frozen=True)
class Bucket:
    """The shape to which a decode step is padded."""

    sequences: int
    """Rows of the padded step."""
    context: int
    """Tokens that the longest sequence may have."""
    adapted: bool = False
    """Whether rows may have adapters."""

    @property
    def rows(self) -> int:
        return self.sequences

    def inputs(self, sizes: InputSizes) -> DecodeInputs:
        return DecodeInputs(self.sequences, self.context, sizes, adapted=self.adapted)


@dataclass(frozen=True)
class MixedBucket:
    """The shape to which a step is padded that is more than decodes."""

    rows: int
    sequences: int
    """Most sequences of the step."""
    context: int
    """Tokens that the longest sequence may have."""
    adapted: bool = False
    """Whether rows may have adapters."""

    def inputs(self, sizes: InputSizes) -> MixedInputs:
        return MixedInputs(self.rows, self.sequences, self.context, sizes, adapted=self.adapted)


@dataclass(frozen=True)
class MixedBuckets:
    """The buckets for steps of up to `sequences` sequences that are more than decodes."""

    rows: tuple[int, ...]
    """Rows of each bucket, ascending; none: such steps have no bucket."""
    sequences: int
    contexts: tuple[int, ...]
    """Contexts of decodes' buckets, ascending."""
    kinds: tuple[bool, ...]
    """Whether rows may have adapters."""

    def of(self, batch: Batch) -> MixedBucket | None:
        """Returns the batch's bucket, if it has one."""
        rows, longest = len(batch.tokens), int((batch.starts + batch.counts).max())
        if not self.rows or rows > self.rows[-1] or len(batch.counts) > self.sequences:
            return None
        if longest > self.contexts[-1] or not is_text(batch):
            return None
        context = self._kept[bisect_left(self._kept, longest)]
        adapted = batch.adapters is not None
        return self._bucket(self.rows[bisect_left(self.rows, rows)], context, adapted=adapted)

    @property
    def all(self) -> list[MixedBucket]:
        return [
            self._bucket(rows, context, adapted=adapted)
            for rows in self.rows
            for context in self._kept
            for adapted in self.kinds
        ]

    def _bucket(self, rows: int, context: int, *, adapted: bool) -> MixedBucket:
        return MixedBucket(rows, min(rows, self.sequences), context, adapted)

    @cached_property
    def _kept(self) -> tuple[int, ...]:
        """Contexts."""
        most = MIXED_GRAPHS // max(1, len(self.rows) * len(self.kinds))
        return self.contexts[-max(1, most) :]


def mixed_rows(setup: Setup, config: ModelConfig) -> tuple[int, ...]:
    """Rows of a worker's buckets of steps that are more than decodes, ascending. None for a model
    with an encoder, whose rows don't go through the layers."""
    if config.encoder_rows:
        return ()
    most = min(MIXED_ROWS[-1], setup.max_num_batched_tokens)
    return (*(rows for rows in MIXED_ROWS if rows < most), most)


@dataclass(frozen=True)
class Buckets:
    """The buckets for up to `sequences` sequences of up to `context` tokens each, in KV blocks of
    `block_size` tokens: of decodes, and of steps that are more.

    Contexts double from `first` on, because attention's partial results have room for each split of
    the keys that the bucket allows, and sequences with more than fit take several launches. The
    shortest contexts have a bucket for every 8 sequences, as many of them as the limit
    leaves room for; in the others sequences double, which costs little where weights are read
    whatever the number of rows.
    """

    sequences: int
    context: int
    block_size: int
    adapters: int = 0
    """Most that the sequences may have."""
    limit: int = MAX_GRAPHS
    """Buckets at most."""
    first: int = KEY_SPLIT
    """The shortest context."""
    mixed_rows: tuple[int, ...] = ()
    """Rows of steps that are more than decodes (see MixedBuckets)."""

    def of(self, batch: Batch) -> Bucket | MixedBucket | None:
        """Returns the batch's bucket; None if it has none: it is larger than the largest one, or
        has parts of media."""
        count, longest = len(batch.counts), int(batch.starts.max()) + 1
        if len(batch.tokens) > count:
            return self._mixed.of(batch)
        if not decodes_text(batch):
            return None
        return self.fitting(count, longest, adapted=batch.adapters is not None)

    def fitting(self, count: int, longest: int, *, adapted: bool = False) -> Bucket | None:
        """Returns the bucket of `count` sequences of up to `longest` tokens; None: there is
        none."""
        if count > self.sequences or longest > self.context:
            return None
        context = bisect_left(self._contexts, longest)
        sizes = self._sizes[context]
        return Bucket(sizes[bisect_left(sizes, count)], self._contexts[context], adapted)

    @property
    def largest(self) -> Bucket:
        """The largest bucket of decodes."""
        return Bucket(self.sequences, self._contexts[-1], self.adapters > 0)

    @property
    def most_rows(self) -> int:
        return max(self.sequences, *self.mixed_rows, 0)

    @cached_property
    def all(self) -> tuple[Bucket | MixedBucket, ...]:
        """All buckets, those that take most memory first."""
        made: list[Bucket | MixedBucket] = [*self._mixed.all, *self._decodes]
        return tuple(sorted(made, key=lambda one: (one.rows, one.context), reverse=True))

    @cached_property
    def _mixed(self) -> MixedBuckets:
        return MixedBuckets(self.mixed_rows, self.sequences, self._contexts, self._kinds)

    @property
    def _decodes(self) -> list[Bucket]:
        return [
            Bucket(size, context, adapted)
            for context, sizes in zip(self._contexts, self._sizes, strict=True)
            for size in sizes
            for adapted in self._kinds
        ]

    @property
    def _kinds(self) -> tuple[bool, ...]:
        return (True, False) if self.adapters else (False,)

    @property
    def _room(self) -> int:
        return max(1, self.limit // len(self._kinds))

    @cached_property
    def _growth(self) -> int:
        """Factor by which sequences and contexts grow from one bucket to the next: 2, or more where
        that would be more buckets than the limit."""
        growth = 2
        while len(self._ladder(growth)) * len(self._powers(growth)) > self._room:
            if growth > max(self.sequences, self.context):
                break
            growth *= 2
        return growth

    @cached_property
    def _contexts(self) -> tuple[int, ...]:
        return self._ladder(self._growth)[-self._room :]

    @cached_property
    def _sizes(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of sequences of each context."""
        contexts = len(self._contexts)
        coarse = self._powers(self._growth)[-(self._room // contexts) :]
        fine = tuple(dict.fromkeys((1, 2, 4, *range(8, self.sequences, 8), self.sequences)))
        fine = tuple(size for size in fine if size <= self.sequences)
        more = len(fine) - len(coarse)
        some = contexts if more <= 0 else (self._room - contexts * len(coarse)) // more
        return tuple(fine if number < some else coarse for number in range(contexts))

    def _ladder(self, growth: int) -> tuple[int, ...]:
        """Contexts."""
        rungs = _rungs(self.first, self.context, growth)
        return tuple(dict.fromkeys(-(-rung // self.block_size) * self.block_size for rung in rungs))

    def _powers(self, growth: int) -> tuple[int, ...]:
        """Numbers of sequences."""
        return _rungs(1, self.sequences, growth)


def buckets_of(setup: Setup, config: ModelConfig) -> Buckets:
    """Buckets of a worker, the same on all ranks. `config`: of the whole model."""
    rows, context, size = setup.max_num_seqs, setup.max_model_len, setup.block_size
    tensor = 1 if setup.group is None else setup.group.tensor
    first = first_context(rows, size, -(-_row_numbers(config) // tensor))
    mixed = mixed_rows(setup, config)
    return Buckets(rows, context, size, setup.max_loras, MAX_GRAPHS, first, mixed)


def _row_numbers(config: ModelConfig) -> int:
    """Numbers that attention gives for a row, of all heads; where layers differ, of the widest."""
    if config.latent is not None:
        return config.num_heads * config.latent.rank
    sizes = (config.query_heads(at) * config.kv_heads(at).size for at in range(config.num_layers))
    return max(sizes)


def first_context(sequences: int, block_size: int, numbers: int) -> int:
    """Returns the longest context that costs a step no more than a shorter one: partial results of
    all sequences fit one launch, and a step copies at most TABLE_BYTES of block tables. It is a
    power of two times a split. `numbers`: that a rank's attention gives for a row."""
    splits = PARTIAL_BYTES // (4 * numbers * sequences)
    tokens = TABLE_BYTES // (4 * sequences) * block_size
    fitting = max(1, min(splits, tokens // KEY_SPLIT))
    return KEY_SPLIT << (fitting.bit_length() - 1)


def _rungs(first: int, last: int, growth: int) -> tuple[int, ...]:
    found = []
    while first < last:
        found.append(first)
        first *= growth
    return (*found, last)
