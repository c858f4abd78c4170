"""Which part of a model a rank has. Plain arithmetic over the model's sizes.

Attention is dealt out in groups of one KV head and its query heads, whole where there are as many
KV heads as ranks; with fewer, each KV head is kept by several ranks, which share its query heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import msgspec

from penstock.errors import StartupError
from penstock.model_config import ModelConfig
from penstock_worker.parallel.place import RankPlace

UNIT = 32
"""Inner columns and vocabulary rows are dealt out in so many where that can be: a quantised block
of most formats, and what matrix kernels like."""


@dataclass(frozen=True)
class Shard:
    """config: of the whole model.  heads, kv_heads, inner, vocab: what this rank has of a layer's
    query heads and KV heads, of the inner columns, of the vocabulary.  layers: of its stage."""

    config: ModelConfig
    place: RankPlace
    heads: range
    kv_heads: range
    inner: range
    vocab: range
    layers: range

    @property
    def own(self) -> ModelConfig:
        """The configuration with this rank's numbers of layers, heads and inner columns. Its
        vocabulary is the whole one, as logits are joined."""
        return msgspec.structs.replace(
            self.config,
            num_layers=len(self.layers),
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
        )

    @property
    def vocab_sizes(self) -> list[int]:
        """Of each tensor rank."""
        return [len(part) for part in deal_units(self.config.vocab_size, self.place.tensor)]


def shard_of(config: ModelConfig, place: RankPlace) -> Shard:
    """Raises StartupError where the model can't be dealt out to so many ranks."""
    _check(config, place)
    rank, tensor = place.tensor_rank, place.tensor
    heads, kv_heads = _attention(config, tensor)[rank]
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
    """0 … count - 1 in consecutive parts whose sizes differ by at most one, larger ones first."""
    least, extra = divmod(count, hands)
    starts = [hand * least + min(hand, extra) for hand in range(hands + 1)]
    return [range(low, high) for low, high in pairwise(starts)]


def deal_units(count: int, hands: int, unit: int = UNIT) -> list[range]:
    """As `deal`, cut at multiples of `unit` if everyone gets some of it so. Larger parts come last:
    there the odd end makes up for it, and sizes differ by at most one unit."""
    units = -(-count // unit)
    if units < hands:
        return deal(count, hands)
    sizes = [len(part) for part in reversed(deal(units, hands))]
    ends = [min(sum(sizes[: hand + 1]) * unit, count) for hand in range(hands)]
    return [range(low, high) for low, high in pairwise([0, *ends])]


def _attention(config: ModelConfig, tensor: int) -> list[tuple[range, range]]:
    """(query heads, KV heads) of each tensor rank."""
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
    if place.pipeline > config.num_layers:
        raise StartupError(
            f"pipeline_parallel_size is {place.pipeline}; the model has {config.num_layers} layers,"
            " and each stage needs one"
        )
