"""Tensors that no preparation yields, from whoever has taken over a process that prepares: the
tower refuses them in its own words, before anything is computed, or encodes them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from penstock.media.prepared import read as read_item
from penstock_worker.media.unfit import UnfitItem
from penstock_worker.vision.sight import Sight
from tests.thinning import part
from tests.worker.vision.pictures import picture
from tests.worker.vision.vision_cases import CASES, both

Tensors = dict[str, np.ndarray]
EXTREMES = (-(2**31), -7, -1, 0, 1, 3, 1 << 20, 2**31 - 1)


def reshaped(tensors: Tensors, name: str, chance: random.Random) -> None:
    sizes = list(tensors[name].shape)
    at = chance.randrange(len(sizes) + 1)
    if at < len(sizes) and chance.randrange(3):
        sizes[at] = chance.choice((0, 1, sizes[at] + 1, max(0, sizes[at] - 1), 2 * sizes[at]))
    elif chance.randrange(2):
        sizes.insert(at, chance.choice((0, 1, 2)))
    elif sizes:
        sizes.pop(at % len(sizes))
    tensors[name] = np.resize(tensors[name], sizes).astype(tensors[name].dtype)


def retyped(tensors: Tensors, name: str, chance: random.Random) -> None:
    types = (np.uint8, np.int32, np.int64, np.float32)
    with np.errstate(invalid="ignore"):  # a number that is none, or too large
        tensors[name] = tensors[name].astype(chance.choice(types))


def renumbered(tensors: Tensors, name: str, chance: random.Random) -> None:
    changed = tensors[name].copy()
    if changed.size and changed.dtype != np.uint8:
        own = chance.choice(EXTREMES)
        changed.flat[chance.randrange(changed.size)] = own
        if not chance.randrange(3):
            changed.fill(own)
    tensors[name] = changed


def lost(tensors: Tensors, name: str, chance: random.Random) -> None:
    if chance.randrange(2):
        del tensors[name]
    else:
        tensors[f"{name}s"] = tensors[name]


CHANGES: tuple[Callable[[Tensors, str, random.Random], None], ...] = (
    *(reshaped,) * 3,
    *(renumbered,) * 3,
    retyped,
    lost,
)


def spoiled(tensors: Mapping[str, np.ndarray], chance: random.Random) -> Tensors:
    found = dict(tensors)
    for _ in range(chance.choice((1, 1, 2, 3))):
        if found:
            chance.choice(CHANGES)(found, chance.choice(sorted(found)), chance)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_tensors_of_wrong_shapes_types_and_numbers_are_refused(case: str) -> None:
    _, ours = both(case)
    preparation, chance = CASES[case].preparation, random.Random(case)
    sight = Sight(ours.tower, preparation, lambda: None)
    for number in range(part(400, 0.25)):
        shown = picture(preparation, 1 + number % 3, number)
        for given, check in (
            (read_item(shown.content), sight.check),
            (shown.inputs, ours.tower.check),
        ):
            tensors = spoiled(given, chance)
            try:
                check(tensors, shown.item.rows, shown.item.grid)
            except UnfitItem:
                pass
            except Exception as error:
                said = {name: (each.dtype, each.shape) for name, each in tensors.items()}
                raise AssertionError(f"{said}: {tensors}") from error


def test_rows_of_crops_that_are_made_of_nothing_are_refused() -> None:
    _, ours = both("molmo2")
    shown = picture(CASES["molmo2"].preparation, 1, 1)
    tensors = shown.inputs | {"pooled": np.zeros((len(shown.inputs["marks"]), 0), np.int32)}
    with pytest.raises(UnfitItem, match="pooled has shape"):
        ours.tower.check(tensors, shown.item.rows, shown.item.grid)
