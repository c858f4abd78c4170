"""The tensors of a Hugging Face checkpoint, in our naming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.errors import UnsupportedModel
from penstock.formats.safetensors_file import SafetensorsFile, SafetensorsTensor
from penstock.model.quantised_checkpoint import QuantisedCheckpoint
from penstock_worker.quantisation.checkpoints.gather import gathered
from penstock_worker.weights.cache_scales import cache_scale
from penstock_worker.weights.checkpoint_tensor import CheckpointTensor
from penstock_worker.weights.names import from_hub
from penstock_worker.weights.stored import StoredTensor


def safetensors_tensors(
    files: tuple[str, ...],
    name_of: Callable[[str], str | None] = from_hub,
    quantised: QuantisedCheckpoint | None = None,
) -> dict[str, StoredTensor]:
    """Returns the files' tensors by our names. Those of a quantised module are one.

    `name_of` maps a name in the checkpoint to ours, or to None for a tensor that isn't needed.

    Raises UnsupportedModel for a broken file or module, ModelNotFound for a missing file.
    """
    tensors = _tensors(files)
    if quantised is None:
        return _named([_stored(tensor) for tensor in tensors.values()], name_of)
    found = gathered(tensors, quantised)
    stored = [_stored(each, spare=name in found.spare) for name, each in found.plain.items()]
    stored += [CheckpointTensor.of(matrix, name) for name, matrix in found.matrices.items()]
    return _named(stored, name_of)


def _tensors(files: tuple[str, ...]) -> dict[str, SafetensorsTensor]:
    found: dict[str, SafetensorsTensor] = {}
    for path in files:
        for tensor in SafetensorsFile(path).tensors.values():
            if tensor.name in found:
                raise UnsupportedModel(f"the tensor {tensor.name} is in two files, one is {path}")
            found[tensor.name] = tensor
    return found


def _stored(tensor: SafetensorsTensor, *, spare: bool = False) -> StoredTensor:
    return StoredTensor(tensor.name, tensor.shape, tensor.dtype, tensor.data, spare=spare)


def _named(
    tensors: list[StoredTensor], name_of: Callable[[str], str | None]
) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for tensor in tensors:
        name = name_of(tensor.name)
        if name is None:
            continue
        scale = cache_scale(name)
        if scale is not None:
            # Of use for a cache of FP8 alone.
            name, tensor = scale, replace(tensor, spare=True)
        if name in found:
            raise UnsupportedModel(
                f"the tensors {tensor.name} and {found[name].name} have the same meaning"
            )
        found[name] = tensor
    return found
