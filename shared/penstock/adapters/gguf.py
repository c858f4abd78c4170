"""Adapters in GGUF files, as llama.cpp's converter writes them.

Metadata: general.type is adapter, adapter.type is lora, adapter.lora.alpha. For the model's
tensor NAME.weight there are NAME.weight.lora_a [rank, inputs] and NAME.weight.lora_b [outputs,
rank]; the rows of the latter are in the order of the model's in such files. Where a tensor has
the matrices of all experts, so do they: [experts, rank, inputs] and [experts, outputs, rank].
"""

from __future__ import annotations

import math
from pathlib import Path

from penstock.adapters.adapter import (
    AdaptedModule,
    Adapter,
    StoredFactor,
    UnfitAdapter,
    check_number,
    checked_modules,
)
from penstock.formats.gguf import GGUFFile, GGUFTensor
from penstock.formats.gguf_types import READ_TYPES

_DOWN, _UP = ".weight.lora_a", ".weight.lora_b"
_TOKENS = "token_embd"
_INVOKED = "adapter.alora.invocation_tokens"


def read_gguf_adapter(path: Path) -> Adapter:
    """Raises UnfitAdapter, or what the reader of GGUF files raises."""
    file = GGUFFile(path, vocabulary=False)
    said = file.metadata
    _expect(said, "general.type", "adapter")
    _expect(said, "adapter.type", "lora")
    if _INVOKED in said:
        raise UnfitAdapter(
            f"the adapter has {_INVOKED}; adapters that act only from some token on are not "
            "supported"
        )
    alpha = said.get("adapter.lora.alpha")
    if type(alpha) is not float or not math.isfinite(alpha):
        raise UnfitAdapter(f"the adapter's adapter.lora.alpha is {alpha!r}; a number is needed")
    architecture = said.get("general.architecture")
    if not isinstance(architecture, str):
        raise UnfitAdapter("the adapter doesn't say its general.architecture")
    downs: dict[str, StoredFactor] = {}
    ups: dict[str, StoredFactor] = {}
    for tensor in file.tensors.values():
        if tensor.name.endswith(_DOWN):
            _add_factors(downs, tensor.name.removesuffix(_DOWN), tensor)
        elif tensor.name.endswith(_UP):
            _add_factors(ups, tensor.name.removesuffix(_UP), tensor)
        else:
            raise UnfitAdapter(f"the adapter's tensor {tensor.name} is not a low-rank factor")
    if alone := sorted(downs.keys() ^ ups.keys()):
        raise UnfitAdapter(f"the adapter has only one factor for {alone[0]}")
    if _TOKENS in downs:
        raise UnfitAdapter(f"the adapter changes {_TOKENS}, which is not supported for GGUF files")
    check_number(len(downs))
    modules = [
        # An alpha of 0 means no scale, as llama.cpp reads it.
        AdaptedModule(
            module=name,
            scale=alpha / max(1, down.shape[0]) if alpha else 1.0,
            down=down,
            up=ups[name],
        )
        for name, down in downs.items()
    ]
    base = said.get("general.base_model.0.name")
    return Adapter(
        format="gguf",
        modules=checked_modules(modules),
        base=base if isinstance(base, str) else "",
        architecture=architecture,
    )


def _expect(said: dict[str, object], key: str, wanted: str) -> None:
    if said.get(key) != wanted:
        raise UnfitAdapter(
            f"the file's {key} is {said.get(key)!r}; in a LoRA adapter it's {wanted!r}"
        )


def _add_factors(found: dict[str, StoredFactor], module: str, tensor: GGUFTensor) -> None:
    """A tensor of all experts' factors is one for each, MODULE.0 and so on."""
    if tensor.type not in READ_TYPES or len(tensor.shape) not in (2, 3):
        raise UnfitAdapter(
            f"the adapter's tensor {tensor.name} is {tensor.type} of shape {tensor.shape}; a "
            f"matrix of {', '.join(sorted(READ_TYPES))} is needed, or one for each expert"
        )
    *experts, rows, columns = tensor.shape
    count = experts[0] if experts else 1
    check_number(len(found) + count)
    for expert, data in enumerate(tensor.data.reshape(count, -1)):
        found[f"{module}.{expert}" if experts else module] = StoredFactor(
            name=tensor.name, shape=(rows, columns), format=tensor.type, data=data
        )
