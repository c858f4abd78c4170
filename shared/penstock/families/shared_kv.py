"""Which layers read the keys and values of an earlier one (Gemma 3n and 4)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import UnsupportedModel


def sources(kinds: Sequence[str], shared: int, where: str) -> list[int | None]:
    """Returns for each layer the one whose keys and values it reads; None if it has its own. Each
    of the last `shared` layers reads those of the last layer of its kind before them. Raises
    UnsupportedModel."""
    first = len(kinds) - shared
    if not 0 <= shared < len(kinds):
        raise UnsupportedModel(
            f"{where}: num_kv_shared_layers is {shared}; 0 to {len(kinds) - 1} are allowed"
        )
    last = {kind: number for number, kind in enumerate(kinds[:first])}
    missing = sorted(set(kinds[first:]) - set(last))
    if missing:
        raise UnsupportedModel(
            f"{where}: the last {shared} layers read the keys and values of earlier ones, and no "
            f"earlier one is of the kind {missing[0]}"
        )
    return [None if number < first else last[kind] for number, kind in enumerate(kinds)]
