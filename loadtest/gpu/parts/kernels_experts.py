"""Products of rows with the FP8 matrices of their experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from loadtest.gpu.cost import product_flops
from loadtest.gpu.parts.cases import Bench, Case, Tiles, drawn
from loadtest.gpu.timing import Work
from penstock_kernels.triton.experts.fp8_products import expert_fp8
from penstock_kernels.triton.experts.placing import place_rows
from penstock_kernels.triton.linear.fp8_blocks import GROUP
from penstock_kernels.triton.matmul_tiles import EXPERTS_FP8, expert_tiles

OP = "experts, fp8, scales by {}"
KINDS = ("output", "block")


@dataclass(frozen=True)
class ExpertShape:
    """A layer's first product: gates, and what they multiply."""

    count: int
    active: int  # experts of a row
    outputs: int
    inputs: int

    def cases(self, rows: tuple[int, ...]) -> Iterator[Case]:
        for kind in KINDS:
            for number in rows:
                yield self.case(number, kind)

    def case(self, rows: int, kind: str) -> Case:
        def make(device: torch.device) -> Bench:
            x, levels = drawn(device, rows, self.inputs), self.levels(device)
            groups = 1 if kind == "output" else -(-self.inputs // GROUP)
            scales = torch.rand(self.count, self.outputs, groups, device=device) + 0.5
            chosen = torch.rand(rows, self.count, device=device).topk(self.active).indices.int()

            def work(tiles: Tiles) -> Work:
                mine = tiles or self.served(rows)
                placed = place_rows(chosen, self.count, mine.rows)
                return lambda: expert_fp8(x, levels, scales, placed, tiles=mine)

            return Bench(work, lambda: reference(x, levels, scales, chosen))

        met = self.count * (1 - (1 - self.active / self.count) ** rows)
        pairs = rows * self.active
        return Case(
            f"{rows} x {self.inputs} x {self.outputs}, {self.active} of {self.count}",
            make,
            OP.format(kind),
            size=met * self.outputs * self.inputs + 2 * pairs * self.outputs,
            flops=product_flops(pairs, self.inputs, self.outputs),
        )

    def served(self, rows: int) -> Tiles:
        chosen = expert_tiles(rows * self.active, self.count, batch_invariant=False)
        return EXPERTS_FP8[chosen.rows]

    def levels(self, device: torch.device) -> Tensor:
        return _levels(self.count, self.outputs, self.inputs, device)


@cache
def _levels(count: int, outputs: int, inputs: int, device: torch.device) -> Tensor:
    """[count, outputs, inputs], made expert by expert."""
    made = torch.empty(count, outputs, inputs, dtype=torch.float8_e4m3fn, device=device)
    for each in made:
        each.copy_(drawn(device, outputs, inputs))
    return made


def reference(x: Tensor, levels: Tensor, scales: Tensor, chosen: Tensor) -> Tensor:
    """[pairs, outputs] float32, one expert after another."""
    found = torch.empty(chosen.numel(), levels.shape[1], device=x.device)
    step = -(-levels.shape[2] // scales.shape[2])
    for number in chosen.unique().tolist():
        wide = scales[number].repeat_interleave(step, 1)[:, : levels.shape[2]]
        pairs = (chosen.flatten() == number).nonzero().flatten()
        found[pairs] = x[pairs // chosen.shape[1]].float() @ (levels[number].float() * wide).T
    return found
