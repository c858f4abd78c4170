"""Fits an adapter's modules to a model's, by name and shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.adapters import AdaptedModule, Adapter, StoredFactor, UnfitAdapter
from penstock.errors import UnsupportedModel
from penstock.families import FAMILIES
from penstock.families.family import Family
from penstock.model_config import ModelConfig
from penstock_worker.adapters.adaptable import adaptable_modules
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.names import from_gguf, from_hub
from penstock_worker.weights.stored import StoredTensor

_MOST_NAMES = 8
"""Most names that a message lists."""


@dataclass(frozen=True)
class FittedModule:
    """An adapter's factors for one of our modules, still in the file."""

    down: StoredTensor
    """A, [rank, inputs]."""
    up: StoredTensor
    """B, [outputs, rank], whose rows are in our order."""
    scale: float

    def factors(self, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Returns A of some columns, and B of some rows times the scale, both float32. Raises
        UnfitAdapter for numbers that aren't finite."""
        rank = self.down.shape[0]
        down = torch.empty(rank, len(columns), dtype=torch.float32)
        up = torch.empty(len(rows), rank, dtype=torch.float32)
        self.down.read_part_into(down, (range(rank), columns))
        self.up.read_part_into(up, (rows, range(rank)))
        up *= self.scale
        for stored, read in ((self.down, down), (self.up, up)):
            if not read.isfinite().all():
                raise UnfitAdapter(
                    f"the adapter's tensor {stored.name} holds numbers that aren't finite"
                )
        return down, up


def fitted(adapter: Adapter, config: ModelConfig, most_rank: int) -> dict[str, FittedModule]:
    """Returns an adapter's modules by our names, as layers.0.self_attn.q_proj. Raises UnfitAdapter
    if it was made for another model, or changes what can't be changed."""
    if adapter.rank > most_rank:
        raise UnfitAdapter(
            f"the adapter has rank {adapter.rank}; at most {most_rank} is allowed (max_lora_rank)"
        )
    family = FAMILIES[config.architecture]
    if adapter.format == "gguf" and adapter.architecture not in (family.gguf, *family.gguf_also):
        raise UnfitAdapter(
            f"the adapter is made for {adapter.architecture}, the model is of {family.name}"
        )
    shapes = adaptable_modules(config)
    found: dict[str, FittedModule] = {}
    for each in adapter.modules:
        for name, module in _ours(each, adapter, family, config).items():
            if name in found:
                raise UnfitAdapter(f"the adapter changes {name} twice")
            _check(each, name, module, shapes)
            found[name] = module
    return found


def _ours(
    module: AdaptedModule, adapter: Adapter, family: Family, config: ModelConfig
) -> dict[str, FittedModule]:
    """A fused module is several of ours, which share A."""
    theirs = f"{module.module}.weight"
    gguf = adapter.format == "gguf"
    name = from_gguf(theirs) if gguf else from_hub(theirs)
    if name is None:
        raise UnfitAdapter(f"the adapter changes {module.module}, which is no part of the decoder")
    names = family.gguf_names if gguf else family.hub_names
    try:
        ups = by_our_names({name: _stored(module.up)}, names, config)
    except UnsupportedModel as error:
        raise UnfitAdapter(f"the adapter doesn't fit the model: {error}") from None
    down = _stored(module.down)
    return {
        each.removesuffix(".weight"): FittedModule(down, up, module.scale)
        for each, up in ups.items()
        if each.endswith(".weight")
    }


def _stored(factor: StoredFactor) -> StoredTensor:
    return StoredTensor(factor.name, factor.shape, factor.format, factor.data)


def _check(
    given: AdaptedModule, name: str, fitted: FittedModule, shapes: dict[str, tuple[int, int]]
) -> None:
    shape = shapes.get(name)
    if shape is None:
        kinds = sorted({each.partition(".")[2].partition(".")[2] for each in shapes})
        raise UnfitAdapter(
            f"the adapter changes {given.module}; what can be changed in this model is "
            f"{', '.join(kinds[:_MOST_NAMES])} of its layers"
        )
    outputs, inputs = shape
    if (fitted.up.shape[0], fitted.down.shape[1]) != shape:
        raise UnfitAdapter(
            f"the adapter changes {given.module} as a matrix of {fitted.up.shape[0]} by "
            f"{fitted.down.shape[1]}; the model's is {outputs} by {inputs}"
        )
