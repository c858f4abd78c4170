"""Which layers of a model keep their keys and values in the same blocks: KV groups.

Layers with the same attention window need the same tokens' KV, so that one block table serves them.
A block of any group is of one size, so that all groups share one pool: it has room for the keys and
values of a block's tokens in `page_layers` layers.  Layers of one window make several groups if
they are more than that (as in vLLM's hybrid KV cache manager).

Layers whose tokens see entries have two parts of blocks: see compressed_kv.

All recurrent layers together make one more group, which has no keys and values: see `state_group`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.attention_spec import AttentionSpec, CompressedSpec
from penstock.model.compressed_kv import block_parts, groups_of, needed_tokens
from penstock.model.config import ModelConfig
from penstock.model.recurrent_spec import result_numbers, state_numbers

MAX_GROUPS = 32
"""Most groups of a model: each has a block table for every sequence."""

MAX_STATE_TOKENS = 2048
"""Tokens between two checkpoints at most, unless a setting says more: so much is computed again
after a prefix that was found."""

STATE_BYTES = 4
"""Bytes of a number of a state: float32."""


class KVGroup(msgspec.Struct, frozen=True):
    """The attention window of a group's layers (see AttentionSpec); by default all tokens before.

    With `every`, it is that of the recurrent layers: it has no blocks of tokens, but `blocks`
    blocks for a copy of all their states, a checkpoint, after each multiple of `every` tokens.
    """

    window: int | None = None
    chunk: int | None = None
    every: int | None = None
    blocks: int = 0

    @property
    def forgets(self) -> bool:
        """Whether tokens lie before what a later token can see."""
        return self.window is not None or self.chunk is not None

    def first_seen(self, position: int) -> int:
        """The first token that the token at `position` sees."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return first if self.chunk is None else max(first, position // self.chunk * self.chunk)

    def widest(self, block_size: int) -> int | None:
        """Blocks that are needed at most to compute one token: those that it sees and its own, or
        that a token sees that comes after the last full block; None: as many as there are."""
        spans = [span for span in (self.window, self.chunk) if span is not None]
        if not spans:
            return None
        if self.window is None and spans[0] % block_size == 0:
            return spans[0] // block_size
        return 1 + min(-(-(span - 1) // block_size) for span in spans)


FULL = KVGroup()
NOTHING_SEEN = KVGroup(window=1)
"""The group of a model whose layers all are recurrent: no token needs the blocks of those before
it, so that a sequence holds few."""
ONE_GROUP = (FULL,)
"""The groups of a model whose layers all see all tokens."""


def blocks_needed(
    groups: Sequence[KVGroup], num_tokens: int, block_size: int, fresh: int = 0
) -> int:
    """Blocks that a sequence with so many tokens holds at most, in all groups together, when its
    last ones are computed `fresh` at a time: where there is a window, they are held besides it."""
    whole, chunk = -(-num_tokens // block_size), -(-fresh // block_size)
    needed = 0
    for group in groups:
        if group.every is not None:
            # The newest one, and those that are being written.
            most = 1 - (-(fresh + block_size) // group.every)
            needed += group.blocks * min(whole * block_size // group.every, most)
            continue
        widest = group.widest(block_size)
        needed += whole if widest is None else min(whole, widest + chunk)
    return needed


def paged(groups: Sequence[KVGroup]) -> tuple[KVGroup, ...]:
    """The groups with keys and values, each of which has a table of a block for so many tokens."""
    return tuple(group for group in groups if group.every is None)


def state_of(groups: Sequence[KVGroup]) -> KVGroup | None:
    """The group of the recurrent layers, which is the last one; None if no layer is recurrent."""
    return groups[-1] if groups and groups[-1].every is not None else None


NO_GROUP = -1
"""Number of the group of a layer without keys and values."""


@dataclass(frozen=True)
class KVLayout:
    """groups: those with keys and values, in the order of block tables.  layers: for each layer of
    the model its group, or NO_GROUP.  reads: of a layer without keys and values of its own, the one
    whose it reads."""

    groups: tuple[KVGroup, ...]
    layers: tuple[int, ...]
    reads: Mapping[int, int] = field(default_factory=dict)

    def places(self, layers: range) -> tuple[tuple[int, int], ...]:
        """For each of a stage's layers its group, and which of the group's layers in that stage it
        is: so its part of each block. A layer that reads another one's has that one's, which is in
        the same stage. Of NO_GROUP this means nothing."""
        met = Counter[int]()
        found: dict[int, tuple[int, int]] = {}
        for layer in layers:
            group = self.layers[layer]
            if layer in self.reads:
                found[layer] = found[self.reads[layer]]
                continue
            found[layer] = group, met[group]
            met[group] += 1
        return tuple(found.values())

    def page_layers(self, layers: range) -> int:
        """Layers whose keys and values a block has room for, in a stage. Where no layer of the
        model has any, blocks hold copies of states alone, and have the size of one layer's."""
        if set(self.layers) == {NO_GROUP}:
            return 1
        found = [place for group, place in self.places(layers) if group != NO_GROUP]
        if not found:
            raise UnsupportedModel(
                f"layers {layers.start} to {layers.stop - 1} have no attention: a model, or a stage"
                " of one, of recurrent layers alone isn't served"
            )
        return 1 + max(found)


def one_group(num_layers: int, reads: Mapping[int, int] | None = None) -> KVLayout:
    """A layout with all layers in one KV group that keeps everything."""
    return KVLayout(ONE_GROUP, (0,) * num_layers, reads or {})


def layers_that_read(config: ModelConfig) -> dict[int, int]:
    """The layers without keys and values of their own, each with the one whose it reads."""
    rules = ((number, config.layer(number).attention) for number in range(config.num_layers))
    return {number: rule.reads for number, rule in rules if rule.reads is not None}


def widest_layer(config: ModelConfig) -> int:
    """Numbers of a token's keys in the layer that has most of them, for which a block has room in
    each of its layers; where no layer has any, what the model says of heads."""
    numbers = range(config.num_layers)
    heads = (config.kv_heads(number) for number in numbers if config.layer(number).attends)
    default = config.num_kv_heads * config.head_dim
    return max((each.count * each.size for each in heads), default=default)


def kv_layout(config: ModelConfig, max_model_len: int) -> KVLayout:
    """The groups of a model that is served with sequences of at most so many tokens, but for that
    of its recurrent layers. Raises UnsupportedModel."""
    compressed = compressed_specs(config)
    if any(each.rate for each in compressed):
        return _with_entries(config, compressed, max_model_len)
    specs = [config.layer(number) for number in range(config.num_layers)]
    of_layers = [
        _group_of(spec.attention, max_model_len) if spec.attends else None for spec in specs
    ]
    reads = layers_that_read(config)
    own = [group for number, group in enumerate(of_layers) if number not in reads]
    counts = Counter(group for group in own if group is not None)
    if not counts:
        if not any(spec.recurrent is not None for spec in specs):
            raise UnsupportedModel("no layer has attention or a state: such models aren't served")
        return KVLayout((NOTHING_SEEN,), (NO_GROUP,) * config.num_layers)
    # What grows with the context comes first.
    kinds = sorted(counts, key=lambda group: group.forgets)
    size = _page_layers(counts)
    numbers: dict[KVGroup, range] = {}
    groups: list[KVGroup] = []
    for kind in kinds:
        several = -(-counts[kind] // size)
        numbers[kind] = range(len(groups), len(groups) + several)
        groups += [kind] * several
    met = Counter[KVGroup]()
    layers: list[int] = []
    for number, group in enumerate(of_layers):
        if number in reads or group is None:
            layers.append(layers[reads[number]] if number in reads else NO_GROUP)
            continue
        # Dealt out in turn, so that a pipeline's stages have about as many layers of each group.
        layers.append(numbers[group][met[group] % len(numbers[group])])
        met[group] += 1
    return KVLayout(tuple(groups), tuple(layers), reads)


def state_sizes(config: ModelConfig) -> tuple[int, ...]:
    """The count of numbers of one sequence's state in each layer, float32; 0 for a layer that isn't
    recurrent."""
    specs = [config.layer(number).recurrent for number in range(config.num_layers)]
    return tuple(0 if spec is None else state_numbers(spec) for spec in specs)


def state_results(config: ModelConfig) -> int:
    """Numbers, float32, of what all recurrent layers together give for a token."""
    specs = (config.layer(number).recurrent for number in range(config.num_layers))
    return sum(result_numbers(spec) for spec in specs if spec is not None)


def state_copies(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """How many sequences may have several tokens in one step: while it is computed, a copy of each
    one's states from before is kept."""
    return min(max_num_seqs, max_num_batched_tokens // 2)


def state_memory(config: ModelConfig, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Returns the bytes that recurrent layers take in addition to the KV pool: states and latest
    results of all sequences, and copies of states."""
    copies = state_copies(max_num_seqs, max_num_batched_tokens)
    results = STATE_BYTES * state_results(config)
    return max_num_seqs * (state_bytes(config) + results) + copies * state_bytes(config)


def state_bytes(config: ModelConfig) -> int:
    """Bytes of one sequence's states in all layers; 0 if none is recurrent."""
    return STATE_BYTES * sum(state_sizes(config))


def with_states(
    groups: tuple[KVGroup, ...],
    states: int,
    *,
    block_bytes: int,
    block_size: int,
    every: int | None = None,
) -> tuple[KVGroup, ...]:
    """The groups of a model that has keys and values in `groups`, and `states` bytes of states
    (see state_bytes). every: tokens between two checkpoints, if that is set. Raises
    StartupError."""
    if every is not None and every % block_size:
        raise StartupError(
            f"state_checkpoint_tokens is {every}; it has to be a multiple of kv_block_size,"
            f" {block_size}"
        )
    if not states:
        return groups
    return (*groups, state_group(groups, states, block_bytes, block_size, every))


def kv_numbers(config: ModelConfig, keys: int) -> int:
    """Numbers that a layer keeps of a token, whose keys there are so many numbers."""
    # The CPU kernels have a latent twice: keys and values are ordered differently.
    values = keys if config.latent is None else config.latent.rank
    return keys + values + (0 if config.index is None else config.index.size)


def block_numbers(config: ModelConfig, layout: KVLayout, block_size: int) -> int:
    """Numbers of a block of a model with this layout, of which a rank has all."""
    specs = compressed_specs(config)
    if specs:
        return block_parts(specs, layout.layers, config.head_dim, block_size).size
    layers = layout.page_layers(range(config.num_layers))
    return layers * block_size * kv_numbers(config, widest_layer(config))


def kv_groups(
    config: ModelConfig, number_bytes: int, max_model_len: int, block_size: int
) -> tuple[KVGroup, ...]:
    """All groups of a model, that of recurrent layers too, about as a worker has them.
    number_bytes: of a number in the KV cache. Raises UnsupportedModel."""
    layout = kv_layout(config, max_model_len)
    size = block_numbers(config, layout, block_size) * number_bytes
    return with_states(layout.groups, state_bytes(config), block_bytes=size, block_size=block_size)


def state_group(
    groups: tuple[KVGroup, ...],
    states: int,
    block_bytes: int,
    block_size: int,
    every: int | None,
) -> KVGroup:
    """Returns the group of the recurrent layers. By default a checkpoint takes no more blocks than
    the keys and values between two of them; checkpoints of large states are MAX_STATE_TOKENS
    apart."""
    blocks = -(-states // block_bytes)
    lasting = sum(not group.forgets for group in groups) or len(groups)
    apart = min(-(-blocks // lasting), max(1, MAX_STATE_TOKENS // block_size))
    return KVGroup(every=every or apart * block_size, blocks=blocks)


def compressed_specs(config: ModelConfig) -> tuple[CompressedSpec, ...]:
    """What each layer has of entries, in a model whose attention is compressed; else empty."""
    rules = (config.layer(number).attention for number in range(config.num_layers))
    return tuple(rule.compressed for rule in rules if rule.compressed is not None)


def _with_entries(
    config: ModelConfig, specs: Sequence[CompressedSpec], max_model_len: int
) -> KVLayout:
    """The first group is that of entries. The others have all layers, with what forgets."""
    needed = [needed_tokens(config.layer(number).attention) for number in range(len(specs))]
    spans = [each for each in needed if each is not None]
    all_forget = len(spans) == len(needed) and max(spans) < max_model_len
    group = KVGroup(window=max(spans)) if all_forget else FULL
    layers = [1 + each for each in groups_of(specs, config.head_dim, MAX_GROUPS - 1)]
    return KVLayout((FULL, *(group,) * max(layers)), tuple(layers))


def _group_of(spec: AttentionSpec, max_model_len: int) -> KVGroup:
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
