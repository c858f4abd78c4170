"""The tensors of files: of GGUF files and Hugging Face checkpoints in our naming, and of
llama.cpp's mmproj files by the names that the caller gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.formats.safetensors_file import SafetensorsFile, SafetensorsTensor, same_content
from penstock.model.quantised_checkpoint import QuantisedCheckpoint
from penstock_worker.quantisation.checkpoints.gather import gathered
from penstock_worker.weights.cache_scales import cache_scale
from penstock_worker.weights.gguf_files import NVFP4
from penstock_worker.weights.names import base_names, from_hub, unwrapped
from penstock_worker.weights.stored import CheckpointTensor, StoredTensor


def safetensors_tensors(
    files: tuple[str, ...],
    name_of: Callable[[str], str | None] = from_hub,
    quantised: QuantisedCheckpoint | None = None,
) -> dict[str, StoredTensor]:
    """Returns a checkpoint's tensors by our names. Those of a quantised module are one.

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
    """Returns the files' tensors by their names, without what the model was wrapped in when it was
    saved."""
    found: dict[str, SafetensorsTensor] = {}
    parts = {path: SafetensorsFile(path).tensors.values() for path in files}
    own = base_names([tensor.name for part in parts.values() for tensor in part])
    for path, part in parts.items():
        for tensor in part:
            if tensor.name not in own:
                continue
            name = unwrapped(own[tensor.name])
            if name in found and not same_content(found[name], tensor):
                raise UnsupportedModel(
                    f"the tensor {name} is there twice with different values, once in {path}"
                )
            if name != tensor.name:
                tensor = msgspec.structs.replace(tensor, name=name)
            found[name] = tensor
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


def read_tensors(
    file: GGUFFile, ours: Callable[[str], str | None], flat: frozenset[str] = frozenset()
) -> dict[str, StoredTensor]:
    """Returns the tensors of an mmproj file, llama.cpp's file of a media encoder, by our names.

    ours: the name for one of the file's; None for one that isn't needed.  flat: our names of
    tensors that may have dimensions of one element around their own.

    Raises UnsupportedModel for two tensors of one meaning, or one that is NVFP4.
    """
    found: dict[str, StoredTensor] = {}
    for tensor in file.tensors.values():
        name = ours(tensor.name)
        if name is None:
            continue
        if name in found:
            raise UnsupportedModel(f"{file.path}: two tensors have the meaning of {tensor.name}")
        if tensor.type == NVFP4:  # Its factor would be another tensor.
            raise UnsupportedModel(f"{file.path}: {tensor.name} is NVFP4, of decoders only")
        shape = tensor.shape
        if name in flat:
            shape = tuple(size for size in shape if size != 1) or (1,)
        found[name] = StoredTensor(tensor.name, shape, tensor.type, tensor.data)
    return found
