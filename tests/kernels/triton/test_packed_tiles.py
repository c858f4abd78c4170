"""Tiles of the `cpu` kernels as weights on a device, beside the file's blocks there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock_kernels.cpu.matrix import SOURCES
from penstock_kernels.triton.experts.level_products import LEVEL_TYPES, expert_levels
from penstock_kernels.triton.experts.packed_tiles import FORMS, table_of, unpacked
from penstock_kernels.triton.experts.placing import place_rows
from penstock_kernels.triton.matmul_tiles import EXPERTS_FEW
from penstock_kernels.triton.rowwise.row_levels import row_levels
from tests.interpreted_triton import DEVICE
from tests.kernels.cpu.sources import WIDTH, random_source
from tests.kernels.triton.test_levels import check, kept

pytestmark = pytest.mark.timeout(120)

EXPERTS, ROWS = 3, 7


@pytest.mark.parametrize("outputs", [21, 32])
@pytest.mark.parametrize("kind", LEVEL_TYPES)
def test_products_have_the_bits_of_the_files_blocks(kind: str, outputs: int) -> None:
    inputs = 2 * max(WIDTH[kind], 64)
    sources = [random_source(kind, outputs, inputs, seed) for seed in range(EXPERTS)]
    packed = [each.packed() for each in sources]
    tiles = torch.from_numpy(np.stack([each.tiles for each in packed])).to(DEVICE)
    held = packed[0].struct.kind
    found = unpacked(tiles, held, outputs, inputs, table_of(held, tiles.device))
    x = np.random.default_rng(5).standard_normal((ROWS, inputs)).astype(np.float32)
    levels = row_levels(torch.from_numpy(x).to(DEVICE))
    chosen = (torch.arange(ROWS, dtype=torch.int32, device=DEVICE) % EXPERTS)[:, None]
    placed = place_rows(chosen, EXPERTS, EXPERTS_FEW.rows)
    here, there = (
        expert_levels(levels, weights, EXPERTS, placed, tiles=EXPERTS_FEW).cpu().numpy()
        for weights in (found, kept(*sources))
    )
    check(here, there)


def test_all_types_that_have_a_cpus_bits_are_read() -> None:
    assert set(FORMS) == {SOURCES[name].kind for name in LEVEL_TYPES}
