"""How the matrices of a safetensors checkpoint are quantised: what `quantization_config` says,
normalised once, and kept in the prepared model's manifest."""

from __future__ import annotations

from typing import Literal

import msgspec

Storage = Literal[
    "awq", "gptq", "packed", "int4", "int8", "fp8", "mxfp4", "nvfp4", "nf4", "fp4", "hqq", "ternary"
]
"""How a matrix is stored: penstock_worker.quantisation.checkpoints has a file for each."""

_NAMED = ("fp8", "mxfp4", "nvfp4", "nf4", "fp4", "ternary")


class WeightScheme(msgspec.Struct, frozen=True, kw_only=True):
    """How some of the matrices are quantised. Sizes are element counts."""

    storage: Storage
    bits: int
    """Bits of a level, 1 to 8."""
    group_size: int | None = None
    """Inputs that share a scale; None: all inputs of an output, or the whole matrix."""
    symmetric: bool = True
    """Whether no zero points are stored."""
    act_order: bool = False
    """Whether the inputs of a group aren't neighbours: g_idx says which group each belongs to."""
    zeros_less_one: bool = False
    """Whether zero points are stored minus one (GPTQ's first format)."""
    block: tuple[int, int] | None = None
    """Outputs and inputs that share a scale, for FP8 in blocks."""

    float8_inputs: bool = False
    """Whether FP8 weights are meant for products with activations in FP8."""
    scale_divides: bool = False
    """Whether ternary weights are divided by their scale."""

    @property
    def held_bits(self) -> int:
        """The bits in which workers hold a level, 4 or 8."""
        return 4 if self.bits <= 4 else 8

    @property
    def levels(self) -> str:
        """What a stored number is: int and its bits, fp8, mxfp4, nvfp4, nf4, fp4 or ternary."""
        return self.storage if self.storage in _NAMED else f"int{self.bits}"


class QuantisedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Which modules are quantised is read from the tensors themselves, whose names differ."""

    method: str
    """The hub's name: quant_method in config.json."""
    schemes: tuple[WeightScheme, ...]
    """The schemes, at least one. A quantised matrix has one of them, as its tensors' shapes say."""
    unquantised: tuple[str, ...] = ()
    """Modules that config.json says are left as they were: names or patterns, as it has them."""
    plain_dtype: str = "float32"
    """Dtype of most other tensors: float32, bfloat16 or float16."""

    @property
    def name(self) -> str:
        """The method's name for people: `gptq int4`."""
        kinds = dict.fromkeys(scheme.levels for scheme in self.schemes)
        return " ".join(dict.fromkeys((self.method, "/".join(kinds))))
