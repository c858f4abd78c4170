"""How a model is sharded over ranks. Plain arithmetic over the model's sizes.

Attention is distributed by groups of one KV head and its query heads. With at least as many KV
heads as tensor-parallel ranks, each rank gets whole groups. With fewer, a KV head is replicated on
several ranks, which share its query heads among them. So it is with latents, which stand in the
cache as one KV head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.dealing import deal
from penstock.model.expert_places import ExpertPlaces
from penstock.model.layer_spec import LayerSpec
from penstock.model.recurrent_spec import (
    GatedDeltaSpec,
    Mamba1Spec,
    Mamba2Spec,
    RecurrentSpec,
    ShortConvSpec,
)
from penstock.model.sharing import check_shared
from penstock_worker.parallel.place import RankPlace

# The part of a recurrent layer that a tensor-parallel rank has: channels, or heads with all that
# is theirs. Plain arithmetic over the layer's sizes.
#
# Heads that share maps (a gated delta net's key head, a group of Mamba 2) stay together where there
# are at least as many such groups as ranks; else several ranks have the same maps, and share the
# heads that use them. So a head's numbers are those of one rank that has all.

Ranges = tuple[range, ...]
"""Indices of a dimension, in order."""


@dataclass(frozen=True)
class RecurrentShard:
    """A rank's part of a layer."""

    own: RecurrentSpec
    """The layer's sizes, with those of the part."""
    rows: Mapping[str, Ranges]
    """The part of each tensor that is cut, by the last part of its name without `.weight` and
    `.bias`: the indices of its first dimension."""
    inner: Ranges
    """What the recurrence gives: the columns of the projection back."""
    gathered: tuple[range, ...] = ()
    """Each rank's part of the numbers that the result's norm is over, if these lie on several
    ranks; else empty."""


def recurrent_shard(spec: RecurrentSpec, tensor: int, rank: int) -> RecurrentShard:
    """Returns that of tensor-parallel rank `rank` of `tensor`. Raises StartupError for too many."""
    if isinstance(spec, ShortConvSpec):
        return _short_conv(spec, tensor, rank)
    if isinstance(spec, GatedDeltaSpec):
        return _gated_delta(spec, tensor, rank)
    if isinstance(spec, Mamba1Spec):
        # All channels make the maps of each: check_shared refuses to share them.
        return RecurrentShard(spec, {}, (range(spec.inner),))
    return _mamba2(spec, tensor, rank)


def _short_conv(spec: ShortConvSpec, tensor: int, rank: int) -> RecurrentShard:
    _refuse_more(tensor, spec.width, "channels of short convolutions")
    own = (deal(spec.width, tensor)[rank],)
    rows = {"in_proj": _after(own, 0, spec.width, 2 * spec.width), "conv": own}
    return RecurrentShard(msgspec.structs.replace(spec, width=_count(own)), rows, own)


def _gated_delta(spec: GatedDeltaSpec, tensor: int, rank: int) -> RecurrentShard:
    _refuse_more(tensor, spec.value_heads, "value heads of gated delta nets")
    several = spec.value_heads // spec.key_heads
    part, each = _shares(spec.key_heads, several, tensor)[rank]
    heads: Ranges = (_heads(part, each, several),)
    if spec.tiled:
        firsts = [at * spec.key_heads + part.start for at in each]
        heads = tuple(range(first, first + len(part)) for first in firsts)
    keys, values = _scaled((part,), spec.key_dim), _scaled(heads, spec.value_dim)
    convolved = _after(keys, 0, spec.keys) + _after(values, 2 * spec.keys)
    own = msgspec.structs.replace(spec, key_heads=len(part), value_heads=_count(heads))
    rows = {
        "in_proj_qkv": convolved,
        "in_proj_z": values,
        "in_proj_qkvz": convolved + _after(values, spec.channels),
        "in_proj_ba": _after(heads, 0, spec.value_heads),
        "conv": convolved,
    }
    rows |= dict.fromkeys(("in_proj_q", "in_proj_k", "q_conv", "k_conv"), keys)
    rows |= dict.fromkeys(("in_proj_v", "v_conv"), values)
    rows |= dict.fromkeys(("in_proj_b", "A", "A_log"), heads)
    times = _scaled(heads, spec.key_dim) if spec.rank else heads
    rows |= dict.fromkeys(("in_proj_a", "dt_bias"), times)
    return RecurrentShard(own, rows, values)


def _mamba2(spec: Mamba2Spec, tensor: int, rank: int) -> RecurrentShard:
    _refuse_more(tensor, spec.heads, "heads of Mamba 2")
    several = spec.heads // spec.groups
    shares = _shares(spec.groups, several, tensor)
    parts = [_scaled((_heads(*share, several),), spec.head_dim)[0] for share in shares]
    part, each = shares[rank]
    heads, inner = (_heads(part, each, several),), (parts[rank],)
    maps, all_maps = _scaled((part,), spec.state), spec.groups * spec.state
    convolved = inner + _after(maps, spec.inner, spec.inner + all_maps)
    features = spec.inner + spec.channels
    rows = {
        "in_proj": inner + _after(convolved, spec.inner) + _after(heads, features),
        "conv": convolved,
    }
    rows |= dict.fromkeys(("A", "A_log", "D", "dt_bias"), heads)
    size = spec.inner // spec.norm_groups
    whole = all(end.start % size == 0 and end.stop % size == 0 for end in parts)
    if whole:
        rows["norm"] = inner
    own = msgspec.structs.replace(
        spec,
        heads=_count(heads),
        groups=len(part),
        norm_groups=_count(inner) // size if whole else spec.norm_groups,
    )
    return RecurrentShard(own, rows, inner, () if whole else tuple(parts))


def _refuse_more(tensor: int, parts: int, what: str) -> None:
    if tensor > parts:
        raise StartupError(
            f"tensor_parallel_size is {tensor}; the model has {parts} {what}, and each rank needs "
            "one"
        )


def _shares(groups: int, each: int, tensor: int) -> list[tuple[range, range]]:
    """Returns for each rank its groups, and which of a group's heads it has. There are at most as
    many ranks as heads."""
    if groups >= tensor:
        return [(part, range(each)) for part in deal(groups, tensor)]
    found = []
    for group, owners in enumerate(deal(tensor, groups)):
        found += [(range(group, group + 1), part) for part in deal(each, len(owners))]
    return found


def _heads(part: range, each: range, several: int) -> range:
    """Returns the heads `each` of the groups `part`, which have `several` heads each, side by
    side."""
    first = part.start * several + each.start
    return range(first, first + len(part) * len(each))


def _count(ranges: Sequence[range]) -> int:
    return sum(map(len, ranges))


def _scaled(ranges: Ranges, by: int) -> Ranges:
    return tuple(range(part.start * by, part.stop * by) for part in ranges)


def _after(ranges: Ranges, *offsets: int) -> Ranges:
    """The ranges, moved by each of the offsets."""
    return tuple(range(off + part.start, off + part.stop) for off in offsets for part in ranges)


UNIT = 32
"""Columns of the feed-forward's inner dimension and rows of the vocabulary are distributed in
multiples of this, where possible. It is the block size of most quantised formats, and suits the
matrix kernels."""


@dataclass(frozen=True)
class Shard:
    """The part of a model that one rank holds."""

    config: ModelConfig
    """The configuration of the whole model."""
    place: RankPlace
    heads: range
    """Query heads of each layer."""
    kv_heads: range
    """KV heads of each layer."""
    inner: range
    """Columns of the feed-forward's inner dimension."""
    vocab: range
    """Rows of the embedding and of the output head."""
    layers: range
    """Layers of the rank's stage."""
    experts: ExpertPlaces | None = None
    """The ranks that hold whole experts; None: each rank has a part of all."""

    @property
    def own(self) -> ModelConfig:
        """The model's configuration with this rank's layers, heads and inner columns. The
        vocabulary size stays that of the whole model, because logits are gathered from all
        ranks."""
        return msgspec.structs.replace(
            self.staged,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
            layers=tuple(self._own_layer(number) for number in self.layers),
        )

    def _own_layer(self, number: int) -> LayerSpec:
        layer, recurrent = self.config.layer(number), self.recurrent(number)
        if recurrent is None or recurrent.own == layer.recurrent:
            return layer
        return msgspec.structs.replace(layer, recurrent=recurrent.own)

    def recurrent(self, layer: int) -> RecurrentShard | None:
        """Returns this rank's part of layer number `layer` of the model; None unless it is
        recurrent."""
        spec = self.config.layer(layer).recurrent
        if spec is None:
            return None
        return recurrent_shard(spec, self.place.tensor, self.place.tensor_rank)

    @property
    def staged(self) -> ModelConfig:
        """The model's configuration with this rank's layers, whose sizes are those of the whole
        model."""
        return msgspec.structs.replace(
            self.config,
            num_layers=len(self.layers),
            layers=tuple(self.config.layer(number) for number in self.layers),
        )

    def inner_of(self, size: int) -> range:
        """Returns this rank's columns of an inner dimension of `size`: the feed-forward's, or an
        expert's."""
        return deal_units(size, self.place.tensor)[self.place.tensor_rank]

    @property
    def vocab_sizes(self) -> list[int]:
        """Number of vocabulary rows on each tensor-parallel rank."""
        return [len(part) for part in deal_units(self.config.vocab_size, self.place.tensor)]


def shard_of(config: ModelConfig, place: RankPlace, experts: ExpertPlaces | None = None) -> Shard:
    """Returns the shard of the rank at this place. experts: as Shard has it. Raises StartupError if
    the model can't be split into so many parts."""
    _check(config, place, whole_experts=experts is not None)
    rank, tensor = place.tensor_rank, place.tensor
    heads, kv_heads = head_ranges(config, tensor)[rank]
    return Shard(
        config=config,
        place=place,
        heads=heads,
        kv_heads=kv_heads,
        inner=deal_units(config.intermediate_size, tensor)[rank],
        vocab=deal_units(config.vocab_size, tensor)[rank],
        layers=deal(config.num_layers, place.pipeline)[place.stage],
        experts=experts,
    )


def deal_units(count: int, hands: int, unit: int = UNIT) -> list[range]:
    """Splits as `deal` does, but at multiples of `unit`, provided that every range gets at least
    one unit. Larger ranges come last: there the incomplete last unit makes up for it, and sizes
    differ by at most one unit."""
    units = -(-count // unit)
    if units < hands:
        return deal(count, hands)
    sizes = [len(part) for part in reversed(deal(units, hands))]
    ends = [min(sum(sizes[: hand + 1]) * unit, count) for hand in range(hands)]
    return [range(low, high) for low, high in pairwise([0, *ends])]


def head_ranges(config: ModelConfig, tensor: int) -> list[tuple[range, range]]:
    """Returns (query heads, KV heads) of each tensor-parallel rank."""
    kv_heads = config.num_kv_heads
    group = config.num_heads // kv_heads
    if kv_heads >= tensor:
        parts = deal(kv_heads, tensor)
        return [(range(part.start * group, part.stop * group), part) for part in parts]
    found = []
    for head, owners in enumerate(deal(tensor, kv_heads)):
        for part in deal(group, len(owners)):
            first = head * group
            found.append((range(first + part.start, first + part.stop), range(head, head + 1)))
    return found


def _check(config: ModelConfig, place: RankPlace, *, whole_experts: bool) -> None:
    check_shared(config, place.tensor, place.pipeline, whole_experts=whole_experts)
    for layer in config.layers:
        if layer.recurrent is not None:
            recurrent_shard(layer.recurrent, place.tensor, place.tensor_rank)
