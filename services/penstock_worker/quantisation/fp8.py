"""FP8 (e4m3) weights and activations, with a scale per output of the weights and per row of
activations.

In the default mode, products of many rows are the library's where it has any: torch's scaled_mm
with scales by row, which wants a GPU of compute capability 9.0 (or a CPU), bfloat16 results, and
inputs and outputs that are multiples of 16. All others are our kernel's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from penstock_worker.quantisation.interface import Product, Quantization, Table

if TYPE_CHECKING:
    from torch import Tensor

FP8_GROUP = 128
"""Inputs that share a scale, where they don't all: penstock_kernels.triton.linear.fp8_blocks."""
LIBRARY_ROWS = 65
"""The rows from which on the library computes. Below, a product only waits for its weights, and our
kernel's tiles of 64 rows read them once."""
LIBRARY_CAPABILITY = (9, 0)
_MULTIPLE = 16


@dataclass(frozen=True)
class FP8Product:
    """x @ (levels * scales).T + bias, of activations that are quantised by row."""

    levels: Tensor
    """[outputs, inputs] float8_e4m3fn, contiguous."""
    scales: Tensor
    """Scale of each output, [outputs] float32."""
    bias: Tensor | None
    """What is added to each output, [outputs]; None for nothing."""
    batch_invariant: bool

    def __call__(self, x: Tensor) -> Tensor:
        from penstock_kernels.triton.linear.fp8_linear import fp8_linear

        if x.shape[0] < LIBRARY_ROWS or not self._in_library(x):
            return fp8_linear(x, self.levels, self.scales, self.bias)
        return self._by_library(x)

    def _in_library(self, x: Tensor) -> bool:
        """Whether the library has this product, and may compute it."""
        fits = not any(size % _MULTIPLE for size in self.levels.shape)
        return not self.batch_invariant and fits and x.dtype == torch.bfloat16 and self._able

    @cached_property
    def _able(self) -> bool:
        device = self.levels.device
        if device.type != "cuda":
            return True
        return torch.cuda.get_device_capability(device) >= LIBRARY_CAPABILITY

    def _by_library(self, x: Tensor) -> Tensor:
        from penstock_kernels.triton.linear.fp8_linear import quantise_fp8

        levels, scales = quantise_fp8(x)
        # Sums leave the tensor cores, which add in 14 bits, every 128 inputs.
        return torch._scaled_mm(
            levels,
            self.levels.T,
            scale_a=scales[:, None],
            scale_b=self.scales[None, :],
            bias=None if self.bias is None else self.bias.to(x.dtype),
            out_dtype=x.dtype,
            use_fast_accum=False,
        )


def _product(weight: Tensor, bias: Tensor | None, batch_invariant: bool) -> Product:
    from penstock_kernels.triton.linear.fp8_linear import quantise_fp8

    return FP8Product(*quantise_fp8(weight.contiguous()), bias, batch_invariant)


FP8 = Quantization("fp8", _product, capability=(8, 9))


@dataclass(frozen=True)
class FP8Rows:
    """A KeptMatrix in FP8, with a scale per output."""

    levels: Tensor
    """[outputs, inputs] float8_e4m3fn."""
    scales: Tensor
    """Scale of each output, [outputs] float32."""

    @property
    def outputs(self) -> int:
        return self.levels.shape[0]

    def product(
        self, bias: Tensor | None, dtype: torch.dtype | None, *, batch_invariant: bool
    ) -> Product:
        """Activations are quantised by row, each with its own scale."""
        product = FP8Product(self.levels, self.scales, bias, batch_invariant)
        return product if dtype is None else lambda x: product(x.to(dtype))

    def table(self, dtype: torch.dtype) -> Table:
        return FP8Table(self, dtype)


@dataclass(frozen=True)
class FP8Blocks:
    """A KeptMatrix in FP8, with a scale for each 128 inputs of an output."""

    levels: Tensor
    """[outputs, inputs] float8_e4m3fn."""
    scales: Tensor
    """Scales of each output's groups of inputs, [outputs, groups] float32."""

    @property
    def outputs(self) -> int:
        return self.levels.shape[0]

    def product(
        self, bias: Tensor | None, dtype: torch.dtype | None, *, batch_invariant: bool
    ) -> Product:
        """Activations are quantised in such groups, each with its own scale, in tiles of one shape
        in either mode."""
        from penstock_kernels.triton.linear.fp8_blocks import fp8_block_linear

        return lambda x: fp8_block_linear(x, self.levels, self.scales, bias, dtype=dtype)

    def table(self, dtype: torch.dtype) -> Table:
        return FP8Table(self, dtype)


@dataclass(frozen=True)
class FP8Table:
    """Rows of a matrix in FP8, each value of which is rounded once to `dtype`."""

    matrix: FP8Rows | FP8Blocks
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        return self.matrix.outputs

    def __call__(self, ids: Tensor) -> Tensor:
        levels = self.matrix.levels.view(torch.uint8)[ids].view(torch.float8_e4m3fn)
        scales = self.matrix.scales[ids]
        if scales.dim() == 1:
            return (levels.float() * scales[:, None]).to(self.dtype)
        each = scales.repeat_interleave(FP8_GROUP, 1)[:, : levels.shape[1]]
        return (levels.float() * each).to(self.dtype)
