"""Copies of KV blocks, against a model with a list of contents for each place."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest

from penstock.protocol.to_worker import Copy
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.slots import PlanError

Kind = Literal["device", "out", "in"]
BLOCKS, HOST_BLOCKS, WIDTHS = 5, 3, (8, 3, 16)
"""Of the device, of the host tier, and bytes of a block in each layer."""


def layers(seed: int) -> list[np.ndarray]:
    numbers = np.random.default_rng(seed)
    return [numbers.integers(0, 256, (BLOCKS, width), dtype=np.uint8) for width in WIDTHS]


def contents(device: list[np.ndarray]) -> list[bytes]:
    """Of each block, over all layers."""
    return [b"".join(part[block].tobytes() for part in device) for block in range(BLOCKS)]


@pytest.mark.parametrize("seed", range(8))
def test_each_kind_copies_all_layers_from_its_source_to_its_target(seed: int) -> None:
    draw, device = random.Random(seed), layers(seed)
    places = {"device": contents(device), "host": [b""] * HOST_BLOCKS}
    copies = BlockCopies(device, HOST_BLOCKS)
    kinds: dict[Kind, tuple[str, str]] = {
        "device": ("device", "device"),
        "out": ("device", "host"),
        "in": ("host", "device"),
    }
    # What the host tier holds at first isn't said.
    first: list[tuple[Kind, int, int]] = [("out", block, block) for block in range(HOST_BLOCKS)]
    later = [
        (kind, draw.randrange(len(places[source])), draw.randrange(len(places[target])))
        for kind, (source, target) in draw.choices(list(kinds.items()), k=40)
    ]
    assert {kind for kind, _, _ in later} == set(kinds)
    for kind, source, target in first + later:
        copies.make([Copy(kind, source, target)])
        read, written = kinds[kind]
        places[written][target] = places[read][source]
        assert contents(device) == places["device"]


@pytest.mark.parametrize(
    ("copy", "said"),
    [
        (Copy("device", 0, BLOCKS), "device block 5 is not in"),
        (Copy("device", -1, 0), "device block -1 is not in"),
        (Copy("out", 0, HOST_BLOCKS), "host block 3 is not in"),
        (Copy("in", HOST_BLOCKS, 0), "host block 3 is not in"),
    ],
)
def test_a_block_that_does_not_exist_is_refused(copy: Copy, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        BlockCopies(layers(0), HOST_BLOCKS).make([copy])
