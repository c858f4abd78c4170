"""What layers cache whose tokens see entries that stand for several of them (see CompressedSpec),
and which of these layers share blocks.

What a later token needs of tokens ends with its window: their keys, and what they give to entries
that aren't finished. So this lies in the blocks of groups that forget. What stays are entries with
their keys in the index, of all layers in the blocks of the first group. These are small, and blocks
of all groups have one size: a group that forgets has few layers, whose part of a block is about as
large as the entries of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.attention_spec import AttentionSpec, CompressedSpec

USUAL_BLOCK = 16
"""Tokens of a block for which layers are divided into groups; with others it works, too."""


def entries_of_block(rate: int, block_size: int) -> int:
    """How many entries, of so many tokens each, a block has room for: those whose last tokens it
    may have."""
    if not rate:
        return 0
    if block_size % rate == 0:
        return block_size // rate
    return 1 if rate % block_size == 0 else block_size


def token_numbers(spec: CompressedSpec, head: int) -> int:
    """Numbers that a layer, whose heads have so many, keeps of a token while later ones need it:
    its key, and what it gives to entries."""
    return head + (2 * spec.series * _entry(spec, head) if spec.rate else 0)


def entry_numbers(spec: CompressedSpec, head: int, block_size: int) -> int:
    """Numbers of a block in such a layer that stay: entries, and their keys in the index."""
    return entries_of_block(spec.rate, block_size) * _entry(spec, head)


def needed_tokens(rule: AttentionSpec) -> int | None:
    """Returns how many tokens a token attends to, itself included, in addition to entries; None:
    all before it."""
    if rule.window is None:
        return None
    return max(rule.window, 0 if rule.compressed is None else rule.compressed.reach)


def groups_of(specs: Sequence[CompressedSpec], head: int, most: int) -> list[int]:
    """Which of at most so many groups that forget each layer is in."""
    sizes = [USUAL_BLOCK * token_numbers(spec, head) for spec in specs]
    room = max(*sizes, sum(entry_numbers(spec, head, USUAL_BLOCK) for spec in specs))
    while True:
        found = _first_fit(sizes, room)
        if max(found) < most:
            return found
        room += room // 8 + 1


@dataclass(frozen=True)
class BlockParts:
    """Which numbers of a block each layer has. Layers of different groups may have the same, as
    their blocks are others."""

    tokens: tuple[range, ...]
    """Block numbers in a layer's group: keys, then what tokens contribute to entries."""
    entries: tuple[range, ...]
    """Block numbers in the first group: entries, then their keys in the index."""
    size: int
    """Numbers of a block."""


def block_parts(
    specs: Sequence[CompressedSpec], groups: Sequence[int], head: int, block_size: int
) -> BlockParts:
    """groups: of each of a model's layers."""
    ends = Counter[int]()

    def part(group: int, size: int) -> range:
        ends[group] += size
        return range(ends[group] - size, ends[group])

    tokens = [
        part(group, block_size * token_numbers(spec, head))
        for spec, group in zip(specs, groups, strict=True)
    ]
    entries = [part(0, entry_numbers(spec, head, block_size)) for spec in specs]
    return BlockParts(tuple(tokens), tuple(entries), max(ends.values()))


def _entry(spec: CompressedSpec, head: int) -> int:
    return head + (0 if spec.index is None else spec.index.size)


def _first_fit(sizes: Sequence[int], room: int) -> list[int]:
    """Fills groups of so much room, the largest first. Returns each one's group."""
    left: list[int] = []
    found = [0] * len(sizes)
    for at in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        fitting = (group for group, free in enumerate(left) if free >= sizes[at])
        group = next(fitting, len(left))
        if group == len(left):
            left.append(room)
        left[group] -= sizes[at]
        found[at] = group
    return found
