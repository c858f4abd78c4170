"""All known weight formats. A new one needs a module beside these, and its line here."""

from __future__ import annotations

from functools import partial

import torch

from penstock.errors import StartupError
from penstock_kernels.cpu.matrix import MatrixKind
from penstock_worker.quantisation.fp8 import FP8
from penstock_worker.quantisation.gguf import GGUF_FORMATS
from penstock_worker.quantisation.interface import Quantization, StoredFormat
from penstock_worker.quantisation.packed import packed_product
from penstock_worker.quantisation.plain import BF16, F16, F32

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
