"""What becomes of a request for a feature that this worker doesn't have: the one place of such
refusals. The engine core knows from Ready what a worker has, so they show a bug there, or a change
that it hasn't heard of yet."""

from __future__ import annotations

from collections.abc import Collection

from penstock_worker.batch.slots import Slot


def lacking(slot: Slot, names: Collection[str], *, pools: bool) -> str | None:
    """Returns why a sequence can't be computed that was just admitted to this slot; None if it can.

    `names`: of the runner's features. `pools`: whether the model makes vectors of all sequences.
    """
    if slot.pooling is not None and not pools and "word times" not in names:
        return no("word times")
    return None


def no(name: str) -> str:
    """Returns the refusal for a feature of this name."""
    return f"this worker has no {name}"
