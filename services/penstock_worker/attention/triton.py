"""The CUDA backend: Triton kernels over one tensor with the keys and values of all layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.triton.attention import rope_write
from penstock_kernels.triton.attention.paged import Reach, paged_attention
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, TileList, plan_attention
from penstock_kernels.triton.tiles import AttentionChoice, latent_group
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    BatchLayout,
    CacheShape,
    HeadNorms,
    Rotation,
    ScoreRule,
    SectionedRotation,
)
from penstock_worker.batch.block_tables import write_tables
from penstock_worker.forward.uploads import Uploads

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class HostLayout:
    """The layout of one step, on the host."""

    slots: np.ndarray
    """[rows] int32, -1 for padding."""
    plan: DeviceAttentionPlan
    """With tensors on the host."""
    more: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    """Slots, and [sequences, blocks] int32 tables, for each further KV group."""

    @property
    def arrays(self) -> list[np.ndarray]:
        """All int32 arrays that the device needs, in the order in which `TritonAttention.step`
        takes them."""
        plan = self.plan
        lists = [each for tiles in (plan.few, plan.many) if tiles is not None
                 for each in (tiles.sequences, tiles.firsts)]  # fmt: skip
        tensors = (plan.tables, plan.query_starts, plan.query_lens, plan.seq_lens, *lists)
        more = [array for pair in self.more for array in pair]
        return [self.slots, *(tensor.numpy() for tensor in tensors), *more]


class TritonAttention:
    """`cache` is [layers, 2, kv_heads, slots, head_dim], keys before values, in float32, bfloat16,
    float16 or float8_e4m3fn. Where values are parts of keys, it is [layers, 1, …].

    The slots of a block are contiguous within each head, so that a decode reads whole blocks.
    """

    name: ClassVar[str] = "triton"

    def __init__(
        self, shape: CacheShape, num_blocks: int, device: torch.device, choice: AttentionChoice
    ) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.choice = choice
        self._uploads = Uploads(device)
        slots = num_blocks * shape.block_size
        sizes = (shape.num_layers, _parts(shape), shape.num_kv_heads, slots, shape.head_dim)
        # Not filled: no slot is read before it is written.
        self.cache = torch.empty(*sizes, dtype=shape.dtype, device=device)

    @staticmethod
    def block_bytes(shape: CacheShape) -> int:
        per_token = _parts(shape) * shape.num_layers * shape.num_kv_heads * shape.head_dim
        return per_token * shape.dtype.itemsize * shape.block_size

    def blocks(self) -> Tensor:
        """Returns a view of the cache, [parts, blocks, bytes] uint8. Block b is [:, b]."""
        return self.cache.view(torch.uint8).view(-1, self.num_blocks, self._part_bytes)

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
        plan = plan_attention(
            layout.block_tables,
            layout.counts,
            layout.starts + layout.counts,
            block_size=size,
            group=self._group,
            choice=self.choice,
            device=_HOST,
        )
        sequence = np.repeat(np.arange(len(layout.counts)), layout.counts)

        def slots(tables: np.ndarray) -> np.ndarray:
            block = tables[sequence, positions // size]
            return (block * size + positions % size).astype(np.int32)

        first = plan.tables.numpy()
        more = [np.zeros_like(first) for _ in layout.more_tables]
        for tables, out in zip(layout.more_tables, more, strict=True):
            write_tables(tables, out)
        return HostLayout(slots(first), plan, tuple((slots(each), each) for each in more))

    def decode_layout(self, arrays: list[np.ndarray], context: int) -> HostLayout:
        """Lays out a padded decode step. All shapes, and the bounds of the grids, depend only on
        the arrays' shapes and on `context`.

        `arrays` are those of decode_shapes, written by write_decode. `context` is a number of
        tokens, a multiple of the block size, and at least that of the longest sequence.
        """
        slots, *plan = arrays[:7]
        more = tuple(zip(arrays[7::2], arrays[8::2], strict=True))
        tables, query_starts, query_lens, lengths, sequences, firsts = map(torch.from_numpy, plan)
        few = TileList(sequences, firsts, queries=1, end=context)
        return HostLayout(
            slots,
            DeviceAttentionPlan(
                tables,
                query_starts,
                query_lens,
                lengths,
                few,
                None,
                self.choice,
                self.shape.block_size,
                self._group,
            ),
            more,
        )

    def step(self, host: HostLayout, tensors: list[Tensor]) -> TritonStep:
        """Returns the step on the device. `tensors` are `host.arrays`, copied there."""
        behind = len(tensors) - 2 * len(host.more)
        slots, tables, starts, queries, lengths, *lists = tensors[:behind]
        others = zip(tensors[behind::2], tensors[behind + 1 :: 2], strict=True)
        pairs = iter(zip(lists[::2], lists[1::2], strict=True))

        def placed(tiles: TileList | None) -> TileList | None:
            if tiles is None:
                return None
            sequences, firsts = next(pairs)
            return replace(tiles, sequences=sequences, firsts=firsts)

        plan = replace(
            host.plan,
            tables=tables,
            query_starts=starts,
            query_lens=queries,
            seq_lens=lengths,
            few=placed(host.plan.few),
            many=placed(host.plan.many),
        )
        groups = [(slots, plan), *((each, replace(plan, tables=rows)) for each, rows in others)]
        return TritonStep(self.cache, self.shape, groups)

    @property
    def _group(self) -> int:
        if self.shape.value_in_key is not None:
            return latent_group(self.shape.num_heads, self.choice)
        return self.shape.num_heads // self.shape.num_kv_heads

    @property
    def _part_bytes(self) -> int:
        return self.shape.block_size * self.shape.head_dim * self.shape.dtype.itemsize


class TritonStep:
    """The attention of one step."""

    def __init__(
        self, cache: Tensor, shape: CacheShape, groups: list[tuple[Tensor, DeviceAttentionPlan]]
    ) -> None:
        """`groups` has for each KV group [rows] int32 on the device, where the step's keys and
        values are stored, -1 for nowhere; and its attention's plan."""
        self._cache = cache
        self._shape = shape
        self._groups = groups

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
        group, place = self._shape.place(layer)
        stored, own = self._cache[place], self._shape.value_in_key
        keys, values = stored[0], stored[-1]
        slots, plan = self._groups[group]
        if len(slots) < len(query):
            slots = torch.nn.functional.pad(slots, (0, len(query) - len(slots)), value=-1)
        query = rope_write.rope_write(
            query,
            key,
            value if own is None else None,
            _tables(rotation),
            slots,
            keys,
            values,
            norms=None
            if norms is None
            else rope_write.QueryKeyNorms(norms.query, norms.key, norms.eps),
        )
        scale = query.shape[2] ** -0.5 if rule.scale is None else rule.scale
        reach = Reach(rule.window or 0, rule.soft_cap or 0.0)
        turning = 0 if own is None else query.shape[2] - own
        return paged_attention(
            query, keys, values, plan, scale, reach=reach, sinks=rule.sinks, turning=turning
        )


def _parts(shape: CacheShape) -> int:
    """Returns how many vectors of a head's size are stored for a token."""
    return 2 if shape.value_in_key is None else 1


def _tables(rotation: Rotation | None) -> rope_write.RotaryTables | None:
    if rotation is None:
        return None
    if isinstance(rotation, SectionedRotation):
        rotation = rotation.by_row
    return rope_write.RotaryTables(
        rotation.cos, rotation.sin, rotation.positions, rotation.query_factors
    )
