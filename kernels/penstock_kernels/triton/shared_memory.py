"""The shared memory of a GPU's processors, and which tiles fit.

Triton fetches the tiles of a loop's next turns into shared memory.  How many of them it holds at a
time, and what else it needs, is computed here as Triton 3.7 does it for compute capabilities 8.0 to
12.0 (tests/kernels/triton/test_shared_memory.py compares).  Only `stages` follow from a device
where that is enough, as they change no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
import triton

from penstock_kernels.triton.matmul_tiles import MatmulTiles

FEWEST_STAGES = 2
"""Fewest stages of a pipelined kernel: with one, nothing would be fetched ahead."""


@dataclass(frozen=True)
class SharedMemory:
    """Shared memory of one program.

    size: bytes.  direct: whether tensor cores read tiles of 16-bit numbers and smaller ones from
    it, as on Hopper and Blackwell's large GPUs. Then one more tile is held while they do.
    """

    size: int
    direct: bool

    def held(self, tile: int, stages: int, number_bytes: int) -> int:
        """Bytes that the tiles of a loop take, of `tile` bytes each turn, if a turn depends on no
        load but theirs."""
        more = self.direct and number_bytes <= 2
        return (stages - 1 + more) * tile


HOPPER = SharedMemory(227 << 10, direct=True)


def program_bytes(device: torch.device) -> int:
    """Bytes that a program may have on this GPU, as Triton compares it with what a kernel wants."""
    index = torch.cuda.current_device() if device.index is None else device.index
    found: dict[str, int] = triton.runtime.driver.active.utils.get_device_properties(index)
    return found["max_shared_mem"]


@cache
def shared_memory(device: torch.device) -> SharedMemory:
    """Shared memory of a program on the device, by its own properties; Hopper's, where kernels are
    interpreted."""
    if device.type != "cuda":
        return HOPPER
    capability = torch.cuda.get_device_capability(device)
    return SharedMemory(program_bytes(device), direct=capability[0] in (9, 10))


@cache
def stages_that_fit(tiles: MatmulTiles, dtype: torch.dtype, device: torch.device) -> int:
    """Pipeline stages of a matrix product on a device: the tiles' own, or as many as fit, 2 at
    least. dtype: of both inputs."""
    return fitted_product(tiles, dtype.itemsize, shared_memory(device)).stages


@cache
def widening_stages_that_fit(tiles: MatmulTiles, dtype: torch.dtype, device: torch.device) -> int:
    """Pipeline stages of a product on a device, for weights of one byte that are widened to the
    dtype of the rows: the tiles' own, or as many as fit, 2 at least."""
    return fitted_widening(tiles, dtype.itemsize, shared_memory(device)).stages


def fitted_product(tiles: MatmulTiles, number_bytes: int, shared: SharedMemory) -> MatmulTiles:
    """The tiles with as many stages as fit a matrix product."""
    each = (tiles.rows + tiles.columns) * tiles.inner * number_bytes
    return _fitted(tiles, shared, lambda stages: shared.held(each, stages, number_bytes))


def fitted_widening(tiles: MatmulTiles, number_bytes: int, shared: SharedMemory) -> MatmulTiles:
    """The tiles with as many stages as fit a product with weights of one byte. number_bytes: of the
    rows'."""

    def held(stages: int) -> int:
        return widening_bytes(tiles, number_bytes, shared, stages)

    return _fitted(tiles, shared, held)


def widening_bytes(tiles: MatmulTiles, number_bytes: int, shared: SharedMemory, stages: int) -> int:
    """What a program of such a product holds. Its tensor cores read the weights from registers."""
    rows = shared.held(tiles.rows * tiles.inner * number_bytes, stages, number_bytes)
    return rows + (stages - 1) * tiles.columns * tiles.inner


def _fitted(tiles: MatmulTiles, shared: SharedMemory, held: Callable[[int], int]) -> MatmulTiles:
    stages = tiles.stages
    while stages > FEWEST_STAGES and held(stages) > shared.size:
        stages -= 1
    return replace(tiles, stages=stages)
