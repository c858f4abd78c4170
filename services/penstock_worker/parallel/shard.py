"""How a model is sharded over ranks. Plain arithmetic over the model's sizes.

Attention is distributed by groups of one KV head and its query heads. With at least as many KV
heads as tensor-parallel ranks, each rank gets whole groups. With fewer, a KV head is replicated on
several ranks, which share its query heads among them. So it is with latents, which stand in the
cache as one KV head.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import msgspec

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock.model.mechanisms import (
    CROSS_ATTENTION,
    EXPERTS_BESIDE,
    OWN_HEADS,
    OWN_INNER,
    PER_LAYER_INPUTS,
    SHARED_KV,
    SPARSE_GATE,
    STREAMS,
    VALUES_OF_KEYS,
    mechanisms,
)
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.recurrent_shard import RecurrentShard, recurrent_shard

UNIT = 32
"""Columns of the feed-forward's inner dimension and rows of the vocabulary are distributed in
multiples of this, where possible. It is the block size of most quantised formats, and suits the
matrix kernels."""

WHOLE = frozenset({OWN_HEADS, OWN_INNER, VALUES_OF_KEYS, EXPERTS_BESIDE, SPARSE_GATE})
"""What tensor-parallel ranks can't share."""
ONE_STAGE = frozenset({SHARED_KV, PER_LAYER_INPUTS, STREAMS, CROSS_ATTENTION})
"""What binds all layers to one rank."""


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


def shard_of(config: ModelConfig, place: RankPlace) -> Shard:
    """Returns the shard of the rank at this place. Raises StartupError if the model can't be split
    into so many parts."""
    _check(config, place)
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
    )


def deal(count: int, hands: int) -> list[range]:
    """Splits 0 … count - 1 into consecutive ranges whose sizes differ by at most one, the larger
    ones first."""
    least, extra = divmod(count, hands)
    starts = [hand * least + min(hand, extra) for hand in range(hands + 1)]
    return [range(low, high) for low, high in pairwise(starts)]


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


def _check(config: ModelConfig, place: RankPlace) -> None:
    if place.tensor > config.num_heads:
        raise StartupError(
            f"tensor_parallel_size is {place.tensor}; the model has {config.num_heads} attention "
            "heads, and each rank needs one"
        )
    if place.tensor > min(config.intermediate_size, config.vocab_size):
        raise StartupError(f"tensor_parallel_size is {place.tensor}, more than the model's sizes")
    needs = mechanisms(config)
    one_stage = sorted(needs & ONE_STAGE) if place.ranks > 1 else []
    if one_stage:
        raise StartupError(
            f"tensor_parallel_size and pipeline_parallel_size make {place.ranks} ranks; the model "
            f"has {', '.join(one_stage)}, which one rank must hold: 1 is allowed"
        )
    taps = 0 if config.vision is None else len(config.vision.taps)
    if taps > len(deal(config.num_layers, place.pipeline)[0]):
        raise StartupError(
            f"pipeline_parallel_size is {place.pipeline}; a model of {config.num_layers} layers "
            f"whose tower adds rows behind {taps} of them has these in one stage"
        )
    whole = sorted(needs & WHOLE) if place.tensor > 1 else []
    if whole:
        raise StartupError(
            f"tensor_parallel_size is {place.tensor}; the model has {', '.join(whole)}, which one "
            "rank must hold: 1 is allowed (pipeline_parallel_size may be more)"
        )
    for layer in config.layers:
        if layer.recurrent is not None:
            recurrent_shard(layer.recurrent, place.tensor, place.tensor_rank)
        experts = layer.feed_forward.experts
        if experts is None:
            continue
        inner = min(experts.inner, experts.shared_inner or experts.inner)
        if place.tensor > inner:
            raise StartupError(
                f"tensor_parallel_size is {place.tensor}; the model's experts have an inner "
                f"dimension of {inner}, and each rank needs a part of it"
            )
    if place.pipeline > config.num_layers:
        raise StartupError(
            f"pipeline_parallel_size is {place.pipeline}; the model has {config.num_layers} layers,"
            " and each stage needs one"
        )
