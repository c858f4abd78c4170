"""Which layers of a model keep their keys and values in the same blocks: KV groups.

Layers with the same reach need the same tokens' KV, so that one block table serves them.  A block
of any group is of one size, so that all groups share one pool: it has room for the keys and values
of a block's tokens in `page_layers` layers.  Layers of one reach make several groups if they are
more than that (as in vLLM's hybrid KV cache manager).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.errors import UnsupportedModel
from penstock.layer_spec import AttentionSpec
from penstock.model_config import ModelConfig

MAX_GROUPS = 32
"""Most groups of a model: each has a block table for every sequence."""


class KVGroup(msgspec.Struct, frozen=True):
    """The reach of a group's layers (see AttentionSpec); by default all tokens before."""

    window: int | None = None
    chunk: int | None = None

    @property
    def forgets(self) -> bool:
        """Whether tokens lie behind what a later token can see."""
        return self.window is not None or self.chunk is not None

    def first_seen(self, position: int) -> int:
        """The first token that the token at `position` sees."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return first if self.chunk is None else max(first, position // self.chunk * self.chunk)

    def widest(self, block_size: int) -> int | None:
        """Blocks that are needed at most to compute one token: those that it sees and its own, or
        that a token sees that comes behind the last full block; None: as many as there are."""
        spans = [span for span in (self.window, self.chunk) if span is not None]
        if not spans:
            return None
        if self.window is None and spans[0] % block_size == 0:
            return spans[0] // block_size
        return 1 + min(-(-(span - 1) // block_size) for span in spans)


FULL = KVGroup()
ONE_GROUP = (FULL,)
"""Of a model whose layers all see all tokens."""


def blocks_needed(
    groups: Sequence[KVGroup], num_tokens: int, block_size: int, fresh: int = 0
) -> int:
    """Blocks that a sequence with so many tokens holds at most, in all groups together, when its
    last ones are computed `fresh` at a time: behind a window, they are held beside it."""
    whole, chunk = -(-num_tokens // block_size), -(-fresh // block_size)
    needed = 0
    for group in groups:
        widest = group.widest(block_size)
        needed += whole if widest is None else min(whole, widest + chunk)
    return needed


@dataclass(frozen=True)
class KVLayout:
    """groups: in the order of block tables.  layers: for each layer of the model its group."""

    groups: tuple[KVGroup, ...]
    layers: tuple[int, ...]

    def places(self, layers: range) -> tuple[tuple[int, int], ...]:
        """For each of a stage's layers its group, and which of the group's layers in that stage it
        is: so its part of each block."""
        met = Counter[int]()
        found = []
        for layer in layers:
            group = self.layers[layer]
            found.append((group, met[group]))
            met[group] += 1
        return tuple(found)

    def page_layers(self, layers: range) -> int:
        """Layers whose keys and values a block has room for, in a stage."""
        return 1 + max(place for _, place in self.places(layers))


def one_group(num_layers: int) -> KVLayout:
    """All layers in one group that keeps everything."""
    return KVLayout(ONE_GROUP, (0,) * num_layers)


def kv_layout(config: ModelConfig, max_model_len: int) -> KVLayout:
    """The groups of a model that is served with sequences of at most so many tokens."""
    reaches = [
        _reach(config.layer(number).attention, max_model_len) for number in range(config.num_layers)
    ]
    counts = Counter(reaches)
    # What grows with the context comes first.
    kinds = sorted(counts, key=lambda reach: reach.forgets)
    size = _page_layers(counts)
    numbers: dict[KVGroup, range] = {}
    groups: list[KVGroup] = []
    for kind in kinds:
        several = -(-counts[kind] // size)
        numbers[kind] = range(len(groups), len(groups) + several)
        groups += [kind] * several
    met = Counter[KVGroup]()
    layers = []
    for reach in reaches:
        # Dealt out in turn, so that a pipeline's stages have about as many layers of each group.
        layers.append(numbers[reach][met[reach] % len(numbers[reach])])
        met[reach] += 1
    return KVLayout(tuple(groups), tuple(layers))


def _reach(spec: AttentionSpec, max_model_len: int) -> KVGroup:
    """A window that no sequence outgrows is none."""
    window, chunk = spec.window, spec.chunk
    return KVGroup(
        window=None if window is None or window >= max_model_len else window,
        chunk=None if chunk is None or chunk >= max_model_len else chunk,
    )


def _page_layers(counts: Counter[KVGroup]) -> int:
    """Layers of a group.

    Groups that keep everything take most of the memory, so their layers are divided evenly; in a
    group that forgets, a block may have room for layers that aren't there.
    """
    size, full = min(counts.values()), counts[FULL]
    while full % size:
        size -= 1
    if len(counts) > MAX_GROUPS:
        raise UnsupportedModel(
            f"layers have {len(counts)} different windows; at most {MAX_GROUPS} are served"
        )
    if sum(-(-count // size) for count in counts.values()) <= MAX_GROUPS:
        return size
    return -(-max(counts.values()) // (MAX_GROUPS // len(counts)))
