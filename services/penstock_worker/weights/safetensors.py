"""The tensors of a Hugging Face checkpoint, in our naming."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import UnsupportedModel
from penstock.formats.safetensors_file import SafetensorsFile
from penstock_worker.weights.names import from_hub
from penstock_worker.weights.stored import StoredTensor


def safetensors_tensors(
    files: tuple[str, ...], name_of: Callable[[str], str | None] = from_hub
) -> dict[str, StoredTensor]:
    """Returns the files' tensors by our names.

    `name_of` maps a name in the checkpoint to ours, or to None for a tensor that isn't needed.

    Raises UnsupportedModel for a broken file, ModelNotFound for a missing one.
    """
    found: dict[str, StoredTensor] = {}
    for path in files:
        for tensor in SafetensorsFile(path).tensors.values():
            name = name_of(tensor.name)
            if name is None:
                continue
            if name in found:
                raise UnsupportedModel(f"the tensor {tensor.name} is in two files, one is {path}")
            found[name] = StoredTensor(tensor.name, tensor.shape, tensor.dtype, tensor.data)
    return found
