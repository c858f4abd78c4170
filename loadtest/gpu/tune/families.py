"""The kernels whose tiles are a choice. Imports nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadtest.gpu.tune.settings import Setting, Sizes
    from penstock.model_config import ModelConfig

_HERE = "loadtest.gpu.tune"


@dataclass(frozen=True)
class Family:
    name: str
    module: str
    function: str  # of the module: (config, sizes) to its Setting
    turns: int = 1  # candidates that are tried of it in a round of all families


FAMILIES = (
    Family("decode-attention", f"{_HERE}.attention", "decoding", 4),
    Family("prefill-attention", f"{_HERE}.attention", "prefill", 3),
    Family("invariant-product", f"{_HERE}.products", "invariant", 3),
    Family("invariant-attention", f"{_HERE}.attention", "invariant", 2),
    Family("weight-only", f"{_HERE}.products", "weight_only", 2),
    Family("fp8", f"{_HERE}.products", "fp8_weights", 2),
    Family("gguf-few", f"{_HERE}.products", "gguf_few", 2),
    Family("gguf-many", f"{_HERE}.products", "gguf_many"),
    Family("gate", f"{_HERE}.rows", "gate"),
    Family("rms-norm", f"{_HERE}.rows", "norm"),
    Family("sampling", f"{_HERE}.rows", "sampled"),
    Family("argmax", f"{_HERE}.rows", "greedy"),
)
NAMES = tuple(family.name for family in FAMILIES)


def settings(
    names: Iterable[str], config: ModelConfig, sizes: Sizes
) -> list[tuple[Family, Setting]]:
    """Of the families of these names, in FAMILIES' order."""
    wanted = set(names)
    return [
        (family, getattr(importlib.import_module(family.module), family.function)(config, sizes))
        for family in FAMILIES
        if family.name in wanted
    ]
