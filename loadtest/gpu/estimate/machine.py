"""The machine of the estimates, and what share of it our kernels are assumed to reach."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """An H100 SXM, by NVIDIA's data sheet."""

    memory: float = 3.35e12  # bytes/s
    matrix: float = 989e12  # dense bfloat16 operations/s
    processors: int = 132  # streaming multiprocessors

    def least(self, size: float, operations: float) -> float:
        """Seconds in which a piece of work can't be done faster."""
        return max(size / self.memory, operations / self.matrix)


@dataclass(frozen=True)
class Taken:
    """What is assumed, as nothing was measured. A visit to a GPU puts figures in its place."""

    stream: float = 0.90
    """Share of the memory's rate at which weights or keys are read once."""
    products: float = 0.75
    """Share of the matrix rate that the library's large products reach."""
    products_least: float = 0.70
    """Share of the matrix rate of such products where a clock falls under the load."""
    packed: float = 0.35
    """Share of the matrix rate that products with weights that stay quantised reach."""
    cache: float = 5.5e12
    """Bytes/s from the second-level cache, which feeds products of small tiles."""
    one_processor: float = 1.5
    """What a processor reads where others do nothing, as a multiple of its share of the memory's
    rate."""
    gap: float = 1.5e-6
    """Seconds between two kernels of a graph."""
    early_gap: float = 0.8e-6
    """Seconds between two kernels of which the second is launched early, and only waits."""
    row_kernel: float = 2.5e-6
    """Seconds of a kernel that goes row by row, however few there are."""
    replay: float = 0.3e-3
    """Seconds of the host for a step that is a graph's replay and some sampling."""
    one_tile: float = 0.35
    """Share of the matrix rate of attention of prompts, with one tile of keys in flight."""
    two_tiles: float = 0.44
    """Share of the matrix rate of attention of prompts, with two tiles or more in flight. A tile of
    128 x 128 with heads of 128 keeps a processor's matrix units for 2,048 cycles. As compiled, its
    loop has 986 instructions for each of 8 warps, of which 4 begin in a cycle: 1,972 more, most of
    them between the two products, which are waited for."""
    two_tiles_least: float = 0.40
    two_tiles_most: float = 0.47

    def reading(self, machine: Machine, size: float, programs: int | None = None) -> float:
        """Seconds of reading so many bytes once. programs: that read, where they may be fewer than
        processors."""
        share = 1.0 if programs is None else programs / machine.processors
        return size / (self.stream * machine.memory * min(1.0, self.one_processor * share))

    def tiled(self, machine: Machine, rows: int, columns: int, weight_bytes: float = 2) -> float:
        """Operations/s of products in tiles of so many rows and columns, which come from the cache,
        two bytes a number; weights, of which the columns are, as stated."""
        fed = 2 * rows * columns / (2 * rows + weight_bytes * columns) * self.cache
        return min(self.products * machine.matrix, fed)


H100 = Machine()
TAKEN = Taken()
