"""Adapters of experts' parameters in PEFT's folders (`target_parameters`).

Where a model has the matrices of all experts in one parameter, PEFT wraps the module of experts,
once for each parameter, the model's first one innermost: MODULE.experts.lora_A.weight and
MODULE.experts.base_layer.lora_A.weight. A has the factors of one expert below those of another,
[experts * rank, inputs]; B has an expert's columns apart, [outputs, rank * experts], the number of
the expert changing fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.adapters.adapter import UnfitAdapter
from penstock.adapters.peft_config import PeftConfig

_PARAMETERS = ("gate_up_proj", "up_proj", "down_proj")
"""In the order that models have them in."""
_WRAPPED = re.compile(r"(.*\.experts)((?:\.base_layer)*)")


def expert_parameters(modules: Iterable[str], config: PeftConfig) -> dict[str, str]:
    """Returns the parameters that factors are for, as model.layers.0.mlp.experts.gate_up_proj, by
    the names that they lie under. `modules`: all of these names in the file.

    Raises UnfitAdapter if the settings don't say which they are.
    """
    wrappers: dict[str, list[str]] = {}
    for name in modules:
        if match := _WRAPPED.fullmatch(name):
            wrappers.setdefault(match[1], []).append(name)
    found: dict[str, str] = {}
    for experts, names in wrappers.items():
        parameters = [
            parameter
            for each in _PARAMETERS
            if any(_is(parameter := f"{experts}.{each}", asked) for asked in config.parameters)
        ]
        if len(parameters) != len(names):
            raise UnfitAdapter(
                f"the adapter has {len(names)} pairs of factors for {experts}; its "
                f"target_parameters name {len(parameters)} of {', '.join(_PARAMETERS)}"
            )
        found.update(zip(sorted(names, key=len, reverse=True), parameters, strict=True))
    return found


def _is(parameter: str, asked: str) -> bool:
    return parameter == asked or parameter.endswith(f".{asked}")
