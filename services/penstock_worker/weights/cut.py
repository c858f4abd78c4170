"""The part of each tensor that a tensor-parallel rank reads.

As in Shoeybi et al., "Megatron-LM", 2019: projections into heads and into the feed-forward's inner
dimension are column-parallel, which cuts the rows of their weights. Projections back are
row-parallel, which cuts the columns; their products are summed over the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock_worker.parallel.shard import Shard

_LAYER = re.compile(r"layers\.(\d+)\.")
_RECURRENT = re.compile(r"layers\.(\d+)\.recurrent\.(\w+)")
_EXPERT = re.compile(r"layers\.(\d+)\.mlp\.experts\.(\d+)\.")
_ADDED_ONCE = ("o_proj.bias", "down_proj.bias", "out_proj.bias")
"""Biases of sums over ranks, which the first rank adds."""
_HEAD_BIAS = "lm_head.bias"


class Cut:
    """Computes which part of each tensor one rank reads."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        dim = shard.config.head_dim
        heads, keys = _scaled(shard.heads, dim), _scaled(shard.kv_heads, dim)
        latent = shard.config.latent
        queries = values = both = heads
        if latent is not None:
            queries = _scaled(shard.heads, latent.plain + latent.rotating)
            values = _scaled(shard.heads, latent.value)
            both = _scaled(shard.heads, latent.plain + latent.value)
        self._rows = {
            "q_proj": queries,
            "output_gate_proj": queries,
            "k_proj": keys,
            "v_proj": keys,
            "kv_b_proj": both,
            "k_b_proj": shard.heads,
            "v_b_proj": shard.heads,
            "sinks": shard.heads,
            "embed_tokens": shard.vocab,
            "lm_head": shard.vocab,
        }
        self._columns = {"o_proj": values}
        gates = shard.config.num_heads * dim
        self._gates = (heads, range(gates + heads.start, gates + heads.stop))

    def ranges(self, name: str, shape: Sequence[int]) -> tuple[tuple[range, ...], ...]:
        """Returns, for each dimension of a tensor, the ranges of indices that are read, one after
        another. `name` is in our naming."""
        found = tuple((each,) for each in self.part(name, shape))
        if self._shard.place.tensor == 1:
            return found
        if name.endswith((".q_and_gate_proj.weight", ".q_and_gate_proj.bias")):
            return (self._gates, *found[1:])
        match = _RECURRENT.match(name)
        shard = None if match is None else self._shard.recurrent(int(match[1]))
        if match is None or shard is None:
            return found
        if match[2] == "out_proj":
            return found if name.endswith(".bias") else (found[0], shard.inner)
        return (shard.rows.get(match[2], found[0]), *found[1:])

    def part(self, name: str, shape: Sequence[int]) -> tuple[range, ...]:
        """Returns the range of indices that is read, for each dimension of a tensor. `name` is in
        our naming."""
        part = [range(size) for size in shape]
        if self._shard.place.tensor == 1:
            return tuple(part)
        module, _, kind = name.rpartition(".")
        module = module.rpartition(".")[2]
        if name == _HEAD_BIAS:
            return tuple(part)  # added to the logits of all ranks together
        if module in self._rows:
            part[0] = self._rows[module]
        elif module in ("gate_proj", "up_proj"):  # Each expert's inner dimension is cut, too.
            part[0] = self._shard.inner_of(shape[0])
        elif module == "down_proj" and kind == "weight":
            part[1] = self._shard.inner_of(shape[1])
        elif module in self._columns and kind == "weight":
            part[1] = self._columns[module]
        return tuple(part)

    def elsewhere(self, name: str) -> bool:
        """Returns whether only other ranks need the tensor. `name` is in our naming."""
        shard, place = self._shard, self._shard.place
        layer = _LAYER.match(name)
        if layer is not None:
            number = int(layer[1])
            mine = number in shard.layers
            # A layer beyond the model's last is an error in the checkpoint, which all ranks report.
            if not mine:
                return number < shard.config.num_layers
            if self._of_others_expert(name):
                return True
            return place.tensor_rank > 0 and name.endswith(_ADDED_ONCE)
        module = name.partition(".")[0]
        if module == "embed_tokens":
            return not place.first and not (place.last and shard.config.tie_word_embeddings)
        return module in ("norm", "lm_head") and not place.last

    def _of_others_expert(self, name: str) -> bool:
        experts, match = self._shard.experts, _EXPERT.match(name)
        if experts is None or match is None:
            return False
        ranks, expert = experts.ranks(int(match[1])), int(match[2])
        # An expert beyond the layer's last is an error in the checkpoint, too.
        return expert < len(ranks) and ranks[expert] != self._shard.place.tensor_rank


def _scaled(part: range, by: int) -> range:
    return range(part.start * by, part.stop * by)
