"""Adapters in folders as the PEFT library writes them.

adapter_model.safetensors has, for each module of the model, PREFIX.MODULE.lora_A.weight [rank,
inputs] and PREFIX.MODULE.lora_B.weight [outputs, rank]. Which modules are changed follows from
these tensors; `target_modules` and `layers_to_transform` only say how they came to be chosen.
"""

from __future__ import annotations

from pathlib import Path

from penstock.adapters.adapter import (
    AdaptedModule,
    Adapter,
    StoredFactor,
    UnfitAdapter,
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
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_REFUSED = {
    ".lora_magnitude_vector": "is of DoRA, which is not served",
    ".lora_embedding_A": "changes an embedding, which is not served",
    ".lora_embedding_B": "changes an embedding, which is not served",
    ".lora_A.bias": "is a bias, which is not served",
    ".lora_B.bias": "is a bias, which is not served",
}


def read_peft_folder(folder: Path) -> Adapter:
    """Raises UnfitAdapter, or what the readers of files raise."""
    try:
        values = read_json(folder / CONFIG, MAX_CONFIG_BYTES)
    except FileNotFoundError:
        raise UnfitAdapter(f"the adapter's folder has no {CONFIG}") from None
    config = read_peft_config(values)
    if not (folder / WEIGHTS).exists():
        raise UnfitAdapter(f"the adapter's folder has no {WEIGHTS}; no other format is read")
    tensors = SafetensorsFile(folder / WEIGHTS).tensors
    downs: dict[str, StoredFactor] = {}
    ups: dict[str, StoredFactor] = {}
    for tensor in tensors.values():
        if tensor.name.endswith(_DOWN):
            downs[_module(tensor.name, _DOWN)] = _factor(tensor)
        elif tensor.name.endswith(_UP):
            ups[_module(tensor.name, _UP)] = _factor(tensor)
        else:
            raise UnfitAdapter(f"the adapter's tensor {tensor.name} {_why_refused(tensor.name)}")
    if alone := sorted(downs.keys() ^ ups.keys()):
        raise UnfitAdapter(f"the adapter has one factor only for {alone[0]}")
    modules = [_adapted(name, down, ups[name], config) for name, down in downs.items()]
    return Adapter(format="peft", modules=checked_modules(modules), base=config.base)


def _adapted(name: str, down: StoredFactor, up: StoredFactor, config: PeftConfig) -> AdaptedModule:
    rank = down.shape[0]
    if rank < 1 or rank not in config.ranks:
        raise UnfitAdapter(
            f"{down.name} has rank {rank}; {CONFIG} says {', '.join(map(str, config.ranks))}"
        )
    return AdaptedModule(module=name, scale=config.scale(name, rank), down=down, up=up)


def _module(name: str, ending: str) -> str:
    if not name.startswith(_PREFIX):
        raise UnfitAdapter(f"the adapter's tensor {name} doesn't begin with {_PREFIX}")
    return name.removeprefix(_PREFIX).removesuffix(ending)


def _factor(tensor: SafetensorsTensor) -> StoredFactor:
    if tensor.dtype not in _FLOATS or len(tensor.shape) != 2:
        raise UnfitAdapter(
            f"the adapter's tensor {tensor.name} is {tensor.dtype} of shape {tensor.shape}; a "
            f"matrix of {', '.join(_FLOATS)} is needed"
        )
    rows, columns = tensor.shape
    return StoredFactor(
        name=tensor.name, shape=(rows, columns), format=tensor.dtype, data=tensor.data
    )


def _why_refused(name: str) -> str:
    for part, why in _REFUSED.items():
        if part in name:
            return why
    return "is a whole tensor of the model (see modules_to_save), which is not served"
