"""Fits an adapter's modules to a model's, by name and shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.adapters import AdaptedModule, Adapter, StoredFactor, UnfitAdapter, WholeTensor
from penstock.errors import UnsupportedModel
from penstock.families import FAMILIES
from penstock.families.family import Family
from penstock.model_config import ModelConfig
from penstock_worker.adapters.adaptable import (
    EMBEDDING,
    HEAD,
    adaptable_ends,
    adaptable_modules,
    whole_matrices,
)
from penstock_worker.adapters.dora import RowLengths
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.names import from_gguf, from_hub
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

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
    lengths: RowLengths | None = None
    """None without DoRA."""

    def factors(self, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Returns A of some columns, and B of some rows times the scale, both float32. Raises
        UnfitAdapter for numbers that aren't finite."""
        rank = self.down.shape[0]
        down = finite_part(self.down, range(rank), columns)
        return down, finite_part(self.up, rows, range(rank)).mul_(self.scale)

    def parts(self, rows: range, columns: range) -> ModuleParts:
        """As `factors`, with what DoRA does."""
        down, up = self.factors(rows, columns)
        if self.lengths is None:
            return ModuleParts(down, up)
        (rank, inputs), outputs = self.down.shape, self.up.shape[0]
        whole_down = finite_part(self.down, range(rank), range(inputs))
        whole_up = finite_part(self.up, range(outputs), range(rank))
        gains = self.lengths.gains(rows, whole_down, whole_up, self.scale)
        added = self.lengths.kept_bias(rows, gains)
        return ModuleParts(down, up.mul_(gains[:, None]), gains, added)


class ModuleParts(NamedTuple):
    """What a module's product with x becomes: gains * product + added + up (down x); float32."""

    down: Tensor
    """[rank, inputs]."""
    up: Tensor
    """[outputs, rank], times scale and gains."""
    gains: Tensor | None = None
    """[outputs], where rows have lengths of their own; None: they are ones."""
    added: Tensor | None = None
    """[outputs], with `gains`: so that a bias stays as it was."""


@dataclass(frozen=True)
class FittedMatrix:
    """A matrix that stands in the place of the model's own, still in the file."""

    stored: StoredTensor
    """[rows, columns]."""

    def part(self, rows: range) -> Tensor:
        """Returns some rows, float32. Raises UnfitAdapter for numbers that aren't finite."""
        return finite_part(self.stored, rows, range(self.stored.shape[1]))


Fitted = Mapping[str, FittedModule | FittedMatrix]
"""What an adapter has for our modules, by name."""


def finite_part(stored: StoredTensor, rows: range, columns: range) -> Tensor:
    """Returns a part of a matrix, float32. Raises UnfitAdapter for numbers that aren't finite."""
    read = torch.empty(len(rows), len(columns), dtype=torch.float32)
    stored.read_part_into(read, (rows, columns))
    if not read.isfinite().all():
        raise UnfitAdapter(f"the adapter's tensor {stored.name} holds numbers that aren't finite")
    return read


def fitted(
    adapter: Adapter,
    config: ModelConfig,
    most_rank: int,
    *,
    whole: bool = False,
    weights: Callable[[], Weights] | None = None,
) -> dict[str, FittedModule | FittedMatrix]:
    """Returns an adapter's modules by our names, as layers.0.self_attn.q_proj.

    `whole`: whether it may bring whole matrices. `weights` opens the model's own, whose lengths
    DoRA needs. Raises UnfitAdapter if it was made for another model, or changes what can't be
    changed.
    """
    if adapter.rank > most_rank:
        raise UnfitAdapter(
            f"the adapter has rank {adapter.rank}; at most {most_rank} is allowed (max_lora_rank)"
        )
    family = FAMILIES[config.architecture]
    if adapter.format == "gguf" and adapter.architecture not in (family.gguf, *family.gguf_also):
        raise UnfitAdapter(
            f"the adapter is made for {adapter.architecture}, the model is of {family.name}"
        )
    shapes = adaptable_modules(config) | adaptable_ends(config)
    found: dict[str, FittedModule | FittedMatrix] = {}
    own = None
    for each in adapter.modules:
        if each.magnitude is not None and own is None:
            own = _opened(weights)
        for name, module in _ours(each, adapter, family, config, own).items():
            if name in found:
                raise UnfitAdapter(f"the adapter changes {name} twice")
            _check(each, name, module, shapes)
            found[name] = module
    for tensor in adapter.whole:
        name, matrix = _matrix(tensor, family, config, allowed=whole)
        if name in found:
            raise UnfitAdapter(f"the adapter changes {name} twice")
        found[name] = matrix
    return found


def _opened(weights: Callable[[], Weights] | None) -> Weights:
    if weights is None:
        raise UnfitAdapter("the adapter is one of DoRA, for which the model's own files are needed")
    return weights()


def _matrix(
    tensor: WholeTensor, family: Family, config: ModelConfig, *, allowed: bool
) -> tuple[str, FittedMatrix]:
    known, read = whole_matrices(config), from_hub(tensor.name) or ""
    module, _, kind = read.rpartition(".")
    module = family.hub_names.modules.get(module, module)
    if module not in known or kind != "weight":
        raise UnfitAdapter(
            f"the adapter brings {tensor.name} as a whole (modules_to_save); in this model it may "
            f"bring the weight of {' and '.join(known)}"
        )
    if not allowed:
        raise UnfitAdapter(
            f"the adapter brings {tensor.name} as a whole (modules_to_save); this server takes no "
            "whole matrices (--lora-whole-matrices)"
        )
    if tensor.shape != known[module]:
        more = tensor.shape[0] - known[module][0]
        also = f": an adapter with {more} tokens of its own is not served" if more > 0 else ""
        raise UnfitAdapter(
            f"the adapter's {tensor.name} has shape {tensor.shape}; the model's has "
            f"{known[module]}{also}"
        )
    return module, FittedMatrix(StoredTensor(tensor.name, tensor.shape, tensor.format, tensor.data))


def _ours(
    module: AdaptedModule,
    adapter: Adapter,
    family: Family,
    config: ModelConfig,
    own: Weights | None,
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
        lengths: dict[str, StoredTensor] = {}
        if module.magnitude is not None:
            lengths = by_our_names({name: _stored(module.magnitude)}, names, config)
    except UnsupportedModel as error:
        raise UnfitAdapter(f"the adapter doesn't fit the model: {error}") from None
    down = _stored(module.down)
    found = {}
    for each, up in ups.items():
        if each.endswith(".weight") and up.name == module.up.name:
            name, shape = each.removesuffix(".weight"), (up.shape[0], down.shape[1])
            rows = None
            if each in lengths and own is not None:
                rows = RowLengths(name, shape, lengths[each], own)
            found[name] = FittedModule(down, up, module.scale, rows)
    return found


def _stored(factor: StoredFactor) -> StoredTensor:
    return StoredTensor(factor.name, factor.shape, factor.format, factor.data)


def _check(
    given: AdaptedModule, name: str, fitted: FittedModule, shapes: dict[str, tuple[int, int]]
) -> None:
    shape = shapes.get(name)
    if shape is None:
        in_layers = (each.partition(".")[2].partition(".")[2] for each in shapes)
        kinds = sorted({each for each in in_layers if each})
        raise UnfitAdapter(
            f"the adapter changes {given.module}; what can be changed in this model is "
            f"{', '.join(kinds[:_MOST_NAMES])} of its layers, {EMBEDDING} and {HEAD}"
        )
    outputs, inputs = shape
    if (fitted.up.shape[0], fitted.down.shape[1]) != shape:
        raise UnfitAdapter(
            f"the adapter changes {given.module} as a matrix of {fitted.up.shape[0]} by "
            f"{fitted.down.shape[1]}; the model's is {outputs} by {inputs}"
        )
    if name == EMBEDDING and fitted.lengths is not None:
        raise UnfitAdapter(f"the adapter changes {given.module} by DoRA, which is not served")
