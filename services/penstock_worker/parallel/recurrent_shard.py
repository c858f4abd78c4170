"""The part of a recurrent layer that a tensor-parallel rank has: channels, or heads with all that
is theirs. Plain arithmetic over the layer's sizes.

Heads that share maps (a gated delta net's key head, a group of Mamba 2) stay together where there
are at least as many such groups as ranks; else several ranks have the same maps, and share the
heads that use them. So a head's numbers are those of one rank that has all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from penstock.errors import StartupError
from penstock.model.recurrent_spec import GatedDeltaSpec, Mamba2Spec, RecurrentSpec, ShortConvSpec

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
    return _mamba2(spec, tensor, rank)


def _short_conv(spec: ShortConvSpec, tensor: int, rank: int) -> RecurrentShard:
    _refuse_more(tensor, spec.width, "channels of short convolutions")
    own = (_dealt(spec.width, tensor)[rank],)
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
    rows |= dict.fromkeys(("in_proj_b", "in_proj_a", "A", "A_log", "dt_bias"), heads)
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
        return [(part, range(each)) for part in _dealt(groups, tensor)]
    found = []
    for group, owners in enumerate(_dealt(tensor, groups)):
        found += [(range(group, group + 1), part) for part in _dealt(each, len(owners))]
    return found


def _heads(part: range, each: range, several: int) -> range:
    """Returns the heads `each` of the groups `part`, which have `several` heads each, side by
    side."""
    first = part.start * several + each.start
    return range(first, first + len(part) * len(each))


def _dealt(count: int, hands: int) -> list[range]:
    """Consecutive ranges whose sizes differ by at most one, the larger ones first."""
    least, extra = divmod(count, hands)
    starts = [hand * least + min(hand, extra) for hand in range(hands + 1)]
    return [range(low, high) for low, high in pairwise(starts)]


def _count(ranges: Sequence[range]) -> int:
    return sum(map(len, ranges))


def _scaled(ranges: Ranges, by: int) -> Ranges:
    return tuple(range(part.start * by, part.stop * by) for part in ranges)


def _after(ranges: Ranges, *offsets: int) -> Ranges:
    """The ranges, moved by each of the offsets."""
    return tuple(range(off + part.start, off + part.stop) for off in offsets for part in ranges)
