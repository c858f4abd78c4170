"""Matrices quantised to 8 or 4 bits on load, for the Triton kernels."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear as library_linear

from penstock.process import logs
from penstock_worker.quantisation.interface import Product

log = logs.get(__name__)

MANY_ROWS = 512
"""From this many rows on, weights are unpacked before the product, as those of GGUF files are (see
quantisation.gguf.product). Not measured yet."""


def packed_product(
    name: str, bits: int, weight: Tensor, bias: Tensor | None, batch_invariant: bool
) -> Product | None:
    """Returns a product of weights with 8 or 4 bits and unquantised activations.

    From MANY_ROWS rows on, weights are unpacked and rounded to x's dtype; never with
    `batch_invariant`, so that all rows get the same bits. Returns None if no supported group size
    divides the inputs.
    """
    from penstock_kernels.triton.linear.dequantise import dequantise
    from penstock_kernels.triton.linear.weight_only import GROUPS, pack, weight_only_linear

    outputs, inputs = weight.shape
    group = max((group for group in GROUPS if inputs % group == 0), default=None)
    if group is None:
        log.warning(
            "a matrix stays unquantised: no group of weights divides its inputs",
            quantization=name,
            outputs=outputs,
            inputs=inputs,
            groups=GROUPS,
        )
        return None
    packed = pack(weight, bits=bits, group=group)

    def product(x: Tensor) -> Tensor:
        if not batch_invariant and x.shape[0] >= MANY_ROWS:
            return library_linear(x, dequantise(packed, x.dtype), bias)
        return weight_only_linear(x, packed, bias, batch_invariant=batch_invariant)

    return product
