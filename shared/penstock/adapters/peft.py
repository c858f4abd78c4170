"""Adapters in folders as the PEFT library writes them.

adapter_model.safetensors has, for each module of the model, PREFIX.MODULE.lora_A.weight [rank,
inputs] and PREFIX.MODULE.lora_B.weight [outputs, rank], with DoRA also
PREFIX.MODULE.lora_magnitude_vector [outputs]; of an embedding lora_embedding_A [rank, tokens] and
lora_embedding_B [size, rank]. PREFIX.MODULE.weight is a whole matrix. Which modules are changed
follows from these tensors; `target_modules`, `layers_to_transform` and `modules_to_save` only say
how they came to be chosen.

Where a model has the matrices of all experts in one parameter (`target_parameters`), PEFT wraps the
module of experts, once for each parameter, the model's first one innermost:
MODULE.experts.lora_A.weight and MODULE.experts.base_layer.lora_A.weight. A has the factors of one
expert below those of another, [experts * rank, inputs]; B has an expert's columns apart, [outputs,
rank * experts], the number of the expert changing fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.adapters.adapter import (
    AdaptedModule,
    Adapter,
    StoredFactor,
    UnfitAdapter,
    WholeTensor,
    check_number,
    checked_modules,
)
from penstock.adapters.peft_config import PeftConfig, read_peft_config
from penstock.formats.safetensors_file import SafetensorsFile, SafetensorsTensor
from penstock.formats.small_file import read_json

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1 << 20

_PREFIX = "base_model.model."
_FLOATS = ("F32", "F16", "BF16")
_DOWNS = (".lora_A.weight", ".lora_embedding_A")
_UPS = (".lora_B.weight", ".lora_embedding_B")
_MAGNITUDE = ".lora_magnitude_vector"
_COPIED = ".base_layer.weight"
"""The model's own embedding or head, which PEFT saves with its factors."""
_WHOLE = (".weight", ".bias")
_BIASES = (".lora_A.bias", ".lora_B.bias")


def read_peft_folder(folder: Path) -> Adapter:
    """Raises UnfitAdapter, or what the readers of files raise."""
    try:
        values = read_json(folder / CONFIG, MAX_CONFIG_BYTES)
    except FileNotFoundError:
        raise UnfitAdapter(f"the adapter's folder has no {CONFIG}") from None
    config = read_peft_config(values)
    if not (folder / WEIGHTS).exists():
        raise UnfitAdapter(f"the adapter's folder has no {WEIGHTS}; no other format is supported")
    tensors = _Tensors()
    for tensor in SafetensorsFile(folder / WEIGHTS).tensors.values():
        tensors.add(tensor)
    return tensors.adapter(config)


@dataclass
class _Tensors:
    """Tensors of a file, by what they are, and by module."""

    downs: dict[str, StoredFactor] = field(default_factory=dict)
    ups: dict[str, StoredFactor] = field(default_factory=dict)
    magnitudes: dict[str, StoredFactor] = field(default_factory=dict)
    copied: dict[str, SafetensorsTensor] = field(default_factory=dict)
    whole: list[WholeTensor] = field(default_factory=list)

    def add(self, tensor: SafetensorsTensor) -> None:
        name = tensor.name
        for endings, found in ((_DOWNS, self.downs), (_UPS, self.ups)):
            for ending in endings:
                if name.endswith(ending):
                    self._add_factor(found, _module(name, ending), tensor)
                    return
        if name.endswith(_MAGNITUDE):
            self.magnitudes[_module(name, _MAGNITUDE)] = _factor(tensor, 1)
        elif name.endswith(_COPIED):
            self.copied[_module(name, _COPIED)] = tensor
        elif name.endswith(_BIASES):
            raise UnfitAdapter(f"the adapter's tensor {name} is a bias, which is not supported")
        elif name.endswith(_WHOLE) and ".lora_" not in name:
            self.whole.append(_whole(tensor))
        else:
            raise UnfitAdapter(f"the adapter's tensor {name} is of a kind that is not supported")

    @staticmethod
    def _add_factor(found: dict[str, StoredFactor], module: str, tensor: SafetensorsTensor) -> None:
        if module in found:
            raise UnfitAdapter(
                f"the adapter has {found[module].name} and {tensor.name}; only one of them is "
                "allowed"
            )
        found[module] = _factor(tensor, 2)

    def adapter(self, config: PeftConfig) -> Adapter:
        if alone := sorted(self.downs.keys() ^ self.ups.keys()):
            raise UnfitAdapter(f"the adapter has only one factor for {alone[0]}")
        if alone := sorted(self.magnitudes.keys() - self.downs.keys()):
            raise UnfitAdapter(f"the adapter has a magnitude without factors for {alone[0]}")
        for name, tensor in self.copied.items():
            self._check_copied(name, tensor)
        parameters = expert_parameters(self.downs, config)
        modules = [
            self._experts(name, parameters[name], config)
            if name in parameters
            else self._module(name, config)
            for name in self.downs
        ]
        check_number(sum(each.matrices for each in modules) + len(self.whole))
        if config.tied and self.whole:
            raise UnfitAdapter(
                "the adapter's ensure_weight_tying is true, which is not supported together with "
                "modules_to_save"
            )
        return Adapter(
            format="peft",
            modules=checked_modules(modules),
            base=config.base,
            whole=tuple(sorted(self.whole, key=lambda each: each.name)),
        )

    def _module(self, name: str, config: PeftConfig) -> AdaptedModule:
        down, magnitude = self.downs[name], self.magnitudes.get(name)
        rank = down.shape[0]
        if rank < 1 or rank not in config.ranks:
            raise UnfitAdapter(
                f"{down.name} has rank {rank}; {CONFIG} says {', '.join(map(str, config.ranks))}"
            )
        if config.dora != (magnitude is not None):
            raise UnfitAdapter(
                f"{CONFIG} says use_dora {config.dora}, but {name} has "
                f"{'no' if magnitude is None else 'a'} lora_magnitude_vector"
            )
        return self._adapted(name, name, config.scale(name, rank), magnitude=magnitude)

    def _experts(self, name: str, parameter: str, config: PeftConfig) -> AdaptedModule:
        """Factors that lie under `name`, of all experts together."""
        down, rank = self.downs[name], config.rank_of(parameter)
        if config.dora:
            raise UnfitAdapter(f"the adapter changes {parameter} with DoRA, which is not supported")
        if rank < 1 or not down.shape[0] or down.shape[0] % rank:
            raise UnfitAdapter(
                f"{down.name} has {down.shape[0]} rows; {CONFIG} says {rank} for each expert"
            )
        experts = down.shape[0] // rank
        return self._adapted(name, parameter, config.scale(parameter, rank), experts=experts)

    def _adapted(
        self,
        name: str,
        module: str,
        scale: float,
        *,
        magnitude: StoredFactor | None = None,
        experts: int = 0,
    ) -> AdaptedModule:
        """`name`: of the factors in the file. `module`: what they change."""
        return AdaptedModule(
            module=module,
            scale=scale,
            down=self.downs[name],
            up=self.ups[name],
            magnitude=magnitude,
            experts=experts,
        )

    def _check_copied(self, name: str, tensor: SafetensorsTensor) -> None:
        """Factors never change what they are added to: only the size of the copy says anything."""
        down, up = self.downs.get(name), self.ups.get(name)
        if down is None or up is None:
            raise UnfitAdapter(f"the adapter has a copy of {name} without factors for it")
        fits = ((up.shape[0], down.shape[1]), (down.shape[1], up.shape[0]))
        if tensor.shape not in fits:
            raise UnfitAdapter(
                f"{tensor.name} has shape {tuple(tensor.shape)}; its factors are of {fits[0]}"
            )


def _module(name: str, ending: str) -> str:
    if not name.startswith(_PREFIX):
        raise UnfitAdapter(f"the adapter's tensor {name} doesn't begin with {_PREFIX}")
    return name.removeprefix(_PREFIX).removesuffix(ending)


def _factor(tensor: SafetensorsTensor, dimensions: int) -> StoredFactor:
    if tensor.dtype not in _FLOATS or len(tensor.shape) != dimensions:
        raise UnfitAdapter(
            f"the adapter's tensor {tensor.name} is {tensor.dtype} of shape {tensor.shape}; a "
            f"{'matrix' if dimensions == 2 else 'vector'} of {', '.join(_FLOATS)} is needed"
        )
    rows, columns = (*tensor.shape, 1)[:2]
    return StoredFactor(
        name=tensor.name, shape=(rows, columns), format=tensor.dtype, data=tensor.data
    )


def _whole(tensor: SafetensorsTensor) -> WholeTensor:
    if tensor.dtype not in _FLOATS or len(tensor.shape) not in (1, 2):
        raise UnfitAdapter(
            f"the adapter's tensor {tensor.name} is {tensor.dtype} of shape {tensor.shape}; a "
            f"matrix or vector of {', '.join(_FLOATS)} is needed"
        )
    name = _module(tensor.name, "")
    return WholeTensor(name=name, shape=tuple(tensor.shape), format=tensor.dtype, data=tensor.data)


_PARAMETERS = ("gate_up_proj", "up_proj", "down_proj")
"""Names of the experts' parameters, in the order in which models have them."""
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
