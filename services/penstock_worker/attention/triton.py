"""The CUDA backend: Triton kernels over one tensor with the keys and values of all layers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from penstock.model.attention_spec import KVHeadsSpec
from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.attention.plan import (
    DeviceAttentionPlan,
    TileList,
    plan_attention,
    tile_queries,
)
from penstock_kernels.triton.tiles import AttentionChoice, latent_group
from penstock_worker.attention.flash_attention import FlashAttention, LongChunks
from penstock_worker.attention.interface import BatchLayout, CacheShape
from penstock_worker.attention.layouts import ChunkTiles
from penstock_worker.attention.triton_encoded import EncodedRows, LayerCache
from penstock_worker.attention.triton_step import TritonStep
from penstock_worker.batch.block_tables import write_tables
from penstock_worker.forward.uploads import Uploads

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class HostLayout:
    """The layout of one step, on the host."""

    slots: np.ndarray
    """[rows] int32, -1 for padding."""
    plan: DeviceAttentionPlan
    """Plan of the step, with tensors on the host."""
    more: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    """Slots, and [sequences, blocks] int32 tables, for each further KV group."""
    others: tuple[DeviceAttentionPlan, ...] = ()
    """Plans for further kinds of heads, with tensors on the host; they differ in their tiles."""
    chunks: LongChunks | None = None
    """Long chunks that a library computes; None: it computes none."""

    @property
    def tile_lists(self) -> list[TileList]:
        """Tile lists of all plans, each list once."""
        plans = (self.plan, *self.others)
        lists = [each for plan in plans for each in (plan.few, plan.many) if each is not None]
        return list({id(each): each for each in lists}.values())

    @property
    def arrays(self) -> list[np.ndarray]:
        """All int32 arrays that the device needs, in the order in which `TritonAttention.step`
        takes them."""
        plan = self.plan
        lists = [each for tiles in self.tile_lists for each in (tiles.sequences, tiles.firsts)]
        tensors = (plan.tables, plan.query_starts, plan.query_lens, plan.seq_lens, *lists)
        more = [array for pair in self.more for array in pair]
        return [self.slots, *(tensor.numpy() for tensor in tensors), *more, *self.spans]

    @property
    def spans(self) -> list[np.ndarray]:
        """Arrays, also in `arrays`, of rows that see further than their own position."""
        if self.plan.last_seen is None:
            return []
        ends = (each.ends for each in self.tile_lists)
        return [each.numpy() for each in (self.plan.last_seen, *ends) if each is not None]


AttentionChoices = Callable[[KVHeadsSpec], AttentionChoice]
"""The tiles of layers with such heads."""


def kinds_of_heads(shape: CacheShape) -> list[KVHeadsSpec]:
    """Key and value heads that layers have; first those that `shape` speaks of."""
    first = KVHeadsSpec(count=shape.num_kv_heads, size=shape.head_dim)
    return list(dict.fromkeys((first, *shape.heads_of_layers)))


class TritonAttention:
    """`cache` is [layers, 2, kv_heads, slots, head_dim], keys before values, in float32, bfloat16,
    float16 or float8_e4m3fn. Where values are parts of keys, it is [layers, 1, …].

    The slots of a block are contiguous within each head, so that a decode reads whole blocks. Where
    layers have heads of different sizes, it is [layers, 2, slots, numbers] instead, and a layer has
    the first of a slot's numbers.
    """

    name: ClassVar[str] = "triton"

    def __init__(
        self,
        shape: CacheShape,
        num_blocks: int,
        device: torch.device,
        choices: AttentionChoices,
        encoder_rows: int = 0,
        scales: Sequence[KVScales] = (),
        flash: FlashAttention | None = None,
    ) -> None:
        """`encoder_rows`: how many of a sequence's first tokens are an encoder's output.
        `scales`: of each layer; none: all are 1. A layer that reads another one's keys and values
        has its scales.
        `flash`: what computes long chunks of steps that `lay_out` lays out; None: nothing else
        does."""
        self.shape = shape
        self._flash = flash
        self.num_blocks = num_blocks
        self.encoder_rows = encoder_rows
        self._uploads = Uploads(device)
        kinds = kinds_of_heads(shape)
        self._tiles = [(self._group(each, choices(each)), choices(each)) for each in kinds]
        self._scales = [self._of_groups(each) for each in scales]
        heads = shape.heads_of_layers
        self._kinds = [kinds.index(each) for each in heads]
        slots = num_blocks * shape.block_size
        sizes: tuple[int, ...] = (shape.num_kv_heads, slots, shape.head_dim)
        if heads:
            sizes = (slots, _width(shape))
        sizes = (shape.num_layers, _parts(shape), *sizes)
        # Not filled: no slot is read before it is written.
        self.cache = torch.empty(*sizes, dtype=shape.dtype, device=device)

    @staticmethod
    def block_bytes(shape: CacheShape) -> int:
        per_token = _parts(shape) * shape.num_layers * _width(shape)
        return per_token * shape.dtype.itemsize * shape.block_size

    def blocks(self) -> Tensor:
        """Returns a view of the cache, [parts, blocks, bytes] uint8. Block b is [:, b]."""
        return self.cache.view(torch.uint8).view(-1, self.num_blocks, self._part_bytes)

    def scales_digest(self) -> bytes:
        """Returns a digest of all layers' scales; empty if all are 1. Waits for the device."""
        if not self._scales:
            return b""
        numbers = torch.cat([torch.cat([each.key, each.value]) for each in self._scales])
        return hashlib.sha256(numbers.cpu().numpy().tobytes()).digest()

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns the blocks if the host can read them, which is the case in Triton's interpreter.
        Raises TypeError otherwise."""
        if self.cache.device != _HOST:
            raise TypeError("a device's KV blocks have no view on the host; see DeviceBlockCopies")
        return [part.numpy() for part in self.blocks()]

    def plan(self, layout: BatchLayout) -> TritonStep:
        host = self.lay_out(layout)
        return self.step(host, self._uploads.send(host.arrays))

    def lay_out(self, layout: BatchLayout) -> HostLayout:
        """Lays out any mix of prefills, chunks and decodes."""
        size, positions = self.shape.block_size, layout.positions
        plan, *others = (
            plan_attention(
                layout.block_tables,
                layout.counts,
                layout.starts + layout.counts,
                block_size=size,
                group=group,
                choice=choice,
                device=_HOST,
                last_seen=layout.last_seen,
            )
            for group, choice in self._tiles
        )
        sequence = np.repeat(np.arange(len(layout.counts)), layout.counts)

        def slots(tables: np.ndarray) -> np.ndarray:
            block = tables[sequence, positions // size]
            return (block * size + positions % size).astype(np.int32)

        first = plan.tables.numpy()
        more = [np.zeros_like(first) for _ in layout.more_tables]
        for tables, out in zip(layout.more_tables, more, strict=True):
            write_tables(tables, out)
        groups = tuple((slots(each), each) for each in more)
        chunks = None
        if self._flash is not None and plan.many is not None and layout.last_seen is None:
            chunks = LongChunks(len(sequence), int(layout.counts.max()))
        return HostLayout(slots(first), plan, groups, tuple(others), chunks)

    def decode_layout(self, arrays: list[np.ndarray], context: int) -> HostLayout:
        """Lays out a padded decode step. All shapes, and the sizes of grids, depend only on
        the arrays' shapes and on `context`.

        `arrays` are those of decode_shapes, written by write_decode. `context` is a number of
        tokens, a multiple of the block size, and at least that of the longest sequence.
        """
        slots, *own = arrays[:7]
        *of_sequences, sequences, firsts = map(torch.from_numpy, own)
        few = TileList(sequences, firsts, queries=1, end=context)
        return self._padded(slots, of_sequences, few, {}, arrays[7:])

    def mixed_layout(self, arrays: list[np.ndarray], context: int) -> HostLayout:
        """Lays out a padded step with chunks, as `decode_layout` does decodes: its arrays are those
        of a MixedShape of `chunk_tiles`, written by write_mixed."""
        kinds = (1, *self.chunk_tiles.queries)
        end = 5 + 2 * len(kinds)
        lists = [torch.from_numpy(each) for each in arrays[5:end]]
        few, *many = (
            TileList(sequences, firsts, queries, context)
            for queries, sequences, firsts in zip(kinds, lists[::2], lists[1::2], strict=True)
        )
        slots, *own = arrays[:5]
        of_sequences = [torch.from_numpy(each) for each in own]
        chunks = {tiles.queries: tiles for tiles in many}
        return self._padded(slots, of_sequences, few, chunks, arrays[end:])

    @property
    def chunk_tiles(self) -> ChunkTiles:
        """How `lay_out` divides new tokens, with a query for each tile of few."""
        (_, first), *_ = self._tiles
        many = [tile_queries(choice.many, group) for group, choice in self._tiles]
        return ChunkTiles(first.split_queries, tuple(dict.fromkeys(many)))

    def _padded(
        self,
        slots: np.ndarray,
        of_sequences: Sequence[Tensor],
        few: TileList,
        many: Mapping[int, TileList],
        more: list[np.ndarray],
    ) -> HostLayout:
        """`many`: tiles of long chunks by their queries; none: there are no chunks."""
        tables, query_starts, query_lens, lengths = of_sequences
        plan, *others = (
            DeviceAttentionPlan(
                tables,
                query_starts,
                query_lens,
                lengths,
                few,
                many.get(tile_queries(choice.many, group)),
                choice,
                self.shape.block_size,
                group,
            )
            for group, choice in self._tiles
        )
        groups = tuple(zip(more[::2], more[1::2], strict=True))
        return HostLayout(slots, plan, groups, tuple(others))

    def step(self, host: HostLayout, tensors: list[Tensor]) -> TritonStep:
        """Returns the step on the device. `tensors` are `host.arrays`, copied there."""
        count = len(tensors) - len(host.spans)
        spans: list[Tensor | None] = [*tensors[count:]]
        last_seen, *ends = spans or [None]
        split = count - 2 * len(host.more)
        slots, tables, starts, queries, lengths, *lists = tensors[:split]
        others = zip(tensors[split:count:2], tensors[split + 1 : count : 2], strict=True)
        placed = {
            id(tiles): replace(tiles, sequences=sequences, firsts=firsts, ends=end)
            for tiles, sequences, firsts, end in zip(
                host.tile_lists, lists[::2], lists[1::2], ends or repeat(None), strict=False
            )
        }

        def on_device(plan: DeviceAttentionPlan) -> DeviceAttentionPlan:
            return replace(
                plan,
                tables=tables,
                query_starts=starts,
                query_lens=queries,
                seq_lens=lengths,
                few=placed.get(id(plan.few)),
                many=placed.get(id(plan.many)),
                last_seen=last_seen,
            )

        plans = [on_device(plan) for plan in (host.plan, *host.others)]
        groups = [(slots, plans)]
        groups += [(each, [replace(plan, tables=rows) for plan in plans]) for each, rows in others]
        flash = None
        if self._flash is not None and host.chunks is not None:
            flash = self._flash.step(host.chunks, plans[0])
        return TritonStep(self.shape, self.of_layer, groups, self.encoder_rows, flash)

    def stored_rows(self, slots: Tensor) -> EncodedRows:
        """Returns where a step's rows of encoders are stored. `slots`: [n] int32."""
        return EncodedRows(self.of_layer, slots)

    def of_layer(self, layer: int) -> LayerCache:
        stored = self.cache[self.shape.place(layer)[1]]
        scales = self._scales[layer] if self._scales else None
        if not self._kinds:
            return LayerCache(stored[0], stored[-1], 0, scales)
        heads = self.shape.heads_of_layers[layer]
        own = stored[..., : heads.count * heads.size].unflatten(-1, (heads.count, heads.size))
        keys, values = own.transpose(1, 2)
        return LayerCache(keys, values, self._kinds[layer], scales)

    def _of_groups(self, scales: KVScales) -> KVScales:
        """Scales as the kernels want them: for latents, one for each group of query heads."""
        if self.shape.value_in_key is None:
            return scales
        group, _ = self._tiles[0]
        one = scales.key.repeat(self.shape.num_heads // group)
        return KVScales.of(one, one)

    def _group(self, heads: KVHeadsSpec, choice: AttentionChoice) -> int:
        """Query heads that are computed together."""
        if self.shape.value_in_key is not None:
            return latent_group(self.shape.num_heads, choice)
        return self.shape.num_heads // heads.count

    @property
    def _part_bytes(self) -> int:
        """Bytes of a block in one of `blocks`' parts."""
        shape = self.shape
        numbers = _width(shape) if shape.heads_of_layers else shape.head_dim
        return shape.block_size * numbers * shape.dtype.itemsize


def _parts(shape: CacheShape) -> int:
    """Returns how many vectors of a head's size are stored for a token."""
    return 2 if shape.value_in_key is None else 1


def _width(shape: CacheShape) -> int:
    """Returns how many numbers of a token's keys are stored in a layer: where layers differ, those
    of the widest."""
    return max(each.count * each.size for each in kinds_of_heads(shape))
