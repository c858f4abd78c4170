"""All known weight formats, and the products of matrices that are quantised to 8 or 4 bits on load.
A new one needs a module of this package, and its line here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from penstock.errors import StartupError
from penstock.process import logs
from penstock_kernels.cpu.matrix import MatrixKind
from penstock_worker.quantisation.fp8 import FP8
from penstock_worker.quantisation.gguf import GGUF_FORMATS
from penstock_worker.quantisation.interface import (
    BF16,
    F16,
    F32,
    Product,
    Quantization,
    StoredFormat,
)

if TYPE_CHECKING:
    from torch import Tensor

log = logs.get(__name__)

MANY_ROWS = 512
"""Rows from which weights are unpacked before the product, as those of GGUF files are (see
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
            return torch.nn.functional.linear(x, dequantise(packed, x.dtype), bias)
        return weight_only_linear(x, packed, bias, batch_invariant=batch_invariant)

    return product


# 8-bit weights (signed) with a scale per group of inputs.

INT8 = Quantization("int8", partial(packed_product, "int8", 8), cpu=MatrixKind.S8H)


# 4-bit weights with a scale per group of inputs.

INT4 = Quantization("int4", partial(packed_product, "int4", 4))


FORMATS: dict[str, StoredFormat] = {each.name: each for each in (F32, F16, BF16, *GGUF_FORMATS)}
"""Types that weight files may store, by their name in GGUF and safetensors."""

QUANTIZATIONS: dict[str, Quantization] = {each.name: each for each in (INT8, INT4, FP8)}
"""Values of the setting `quantization`, which quantise floating-point matrices on load. `none`
leaves them as they are."""


def check_quantization(quantization: str, device: torch.device) -> None:
    """Raises StartupError unless the Triton kernels support this quantization on `device`."""
    if quantization == "none":
        return
    if quantization not in QUANTIZATIONS:
        raise StartupError(
            f"quantization is {quantization!r}; allowed on CUDA are none, "
            f"{', '.join(QUANTIZATIONS)}"
        )
    wanted = QUANTIZATIONS[quantization].capability
    if device.type != "cuda" or wanted == (0, 0):
        return
    has = torch.cuda.get_device_capability(device)
    if has < wanted:
        others = [name for name, each in QUANTIZATIONS.items() if each.capability <= has]
        raise StartupError(
            f"quantization is {quantization}, which needs a GPU of compute capability "
            f"{_dotted(wanted)} or higher; {torch.cuda.get_device_name(device)} has "
            f"{_dotted(has)}, and can do none, {', '.join(others)}"
        )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
