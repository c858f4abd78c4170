"""The tensors of a GGUF file, in our naming."""

from __future__ import annotations

import math

from penstock.errors import UnsupportedModel
from penstock.families.finding import served_family
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.names import from_gguf
from penstock_worker.weights.stored import StoredTensor


def gguf_tensors(files: tuple[str, ...], config: ModelConfig) -> dict[str, StoredTensor]:
    """Returns the files' tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    return by_our_names(named_tensors(files), served_family(config.architecture).gguf_names, config)


def named_tensors(files: tuple[str, ...]) -> dict[str, StoredTensor]:
    """Returns what gguf_tensors does, with fused and stacked ones as the files have them."""
    found: dict[str, StoredTensor] = {}
    for path in files:
        for tensor in GGUFFile(path, vocabulary=False).tensors.values():
            name = from_gguf(tensor.name)
            if name in found:
                raise UnsupportedModel(f"{path}: the tensor {tensor.name} is in another part too")
            shape = _our_shape(name, tensor.shape)
            found[name] = StoredTensor(tensor.name, shape, tensor.type, tensor.data)
    return found


_VECTORS = ("recurrent.A", "recurrent.D", "recurrent.norm.weight")


def _our_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The hub's shape of a tensor, where files have the same numbers in another."""
    if name.endswith(_VECTORS):
        return (math.prod(shape),)
    if name.endswith("recurrent.conv.weight") and len(shape) == 2:
        return (shape[0], 1, shape[1])
    if name.endswith("shared_expert_gate.weight") and len(shape) == 1:
        return (1, *shape)
    return shape
