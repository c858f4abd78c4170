"""FP8 (e4m3) weights and activations, with a scale per output of the weights and per row of
activations."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.quantisation.interface import Product, Quantization


def _product(weight: Tensor, bias: Tensor | None, batch_invariant: bool) -> Product:
    from penstock_kernels.triton.linear.fp8_linear import fp8_linear, quantise_fp8

    levels, scales = quantise_fp8(weight.contiguous())
    return lambda x: fp8_linear(x, levels, scales, bias)


FP8 = Quantization("fp8", _product, capability=(8, 9))
