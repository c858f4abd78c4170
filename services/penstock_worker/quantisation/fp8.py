"""FP8 (e4m3) weights and activations, with a scale per output of the weights and per row of
activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock_worker.quantisation.interface import Product, Quantization, Table


def _product(weight: Tensor, bias: Tensor | None, batch_invariant: bool) -> Product:
    from penstock_kernels.triton.linear.fp8_linear import fp8_linear, quantise_fp8

    levels, scales = quantise_fp8(weight.contiguous())
    return lambda x: fp8_linear(x, levels, scales, bias)


FP8 = Quantization("fp8", _product, capability=(8, 9))


@dataclass(frozen=True)
class FP8Rows:
    """A KeptMatrix in FP8, with a scale per output."""

    levels: Tensor
    """[outputs, inputs] float8_e4m3fn."""
    scales: Tensor
    """[outputs] float32."""

    @property
    def outputs(self) -> int:
        return self.levels.shape[0]

    def product(
        self, bias: Tensor | None, dtype: torch.dtype | None, *, batch_invariant: bool
    ) -> Product:
        """Activations are quantised by row, each with its own scale, so rows are independent in any
        case."""
        from penstock_kernels.triton.linear.fp8_linear import fp8_linear

        def product(x: Tensor) -> Tensor:
            wide = x if dtype is None else x.to(dtype)
            return fp8_linear(wide, self.levels, self.scales, bias)

        return product

    def table(self, dtype: torch.dtype) -> Table:
        return FP8Table(self, dtype)


@dataclass(frozen=True)
class FP8Table:
    """Rows of a matrix in FP8, each value of which is rounded once to `dtype`."""

    matrix: FP8Rows
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        return self.matrix.outputs

    def __call__(self, ids: Tensor) -> Tensor:
        levels = self.matrix.levels.view(torch.uint8)[ids].view(torch.float8_e4m3fn)
        return (levels.float() * self.matrix.scales[ids, None]).to(self.dtype)
