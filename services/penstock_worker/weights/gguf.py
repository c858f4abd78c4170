"""The tensors of a GGUF file, in our naming."""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import FAMILIES
from penstock.formats.gguf import GGUFFile
from penstock.model_config import ModelConfig
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.names import from_gguf
from penstock_worker.weights.stored import StoredTensor


def gguf_tensors(files: tuple[str, ...], config: ModelConfig) -> dict[str, StoredTensor]:
    """Returns the files' tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    found: dict[str, StoredTensor] = {}
    for path in files:
        for tensor in GGUFFile(path).tensors.values():
            name = from_gguf(tensor.name)
            if name in found:
                raise UnsupportedModel(f"{path}: the tensor {tensor.name} is in another part too")
            found[name] = StoredTensor(tensor.name, tensor.shape, tensor.type, tensor.data)
    return by_our_names(found, FAMILIES[config.architecture].gguf_names, config)
