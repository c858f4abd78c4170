"""The tensors of files: of GGUF files and Hugging Face checkpoints in our naming, and of
llama.cpp's mmproj files by the names that the caller gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.finding import served_family
from penstock.families.gguf_reading import LONG_FACTORS, SHORT_FACTORS
from penstock.families.tensor_names import TensorNames
from penstock.formats.gguf import GGUFFile, GGUFTensor
from penstock.formats.safetensors_file import SafetensorsFile, SafetensorsTensor, same_content
from penstock.model.config import ModelConfig
from penstock.model.quantised_checkpoint import QuantisedCheckpoint
from penstock_worker.quantisation.checkpoints.gather import gathered
from penstock_worker.quantisation.checkpoints.nvfp4 import NVFP4Blocks
from penstock_worker.weights.cache_scales import cache_scale
from penstock_worker.weights.family_names import by_our_names, in_file
from penstock_worker.weights.names import base_names, from_gguf, from_hub, to_gguf, unwrapped
from penstock_worker.weights.stored import CheckpointTensor, StoredTensor

# The tensors of a GGUF file, in our naming.


def gguf_tensors(files: tuple[str, ...], config: ModelConfig) -> dict[str, StoredTensor]:
    """Returns the files' tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    names = served_family(config.architecture).gguf_names
    return gguf_by_our_names(named_tensors(files), names, config)


def gguf_name(name: str, config: ModelConfig) -> str:
    """Returns the files' name of a tensor of ours."""
    found = to_gguf(in_file(name, served_family(config.architecture).gguf_names))
    of_latents = config.latent is not None and config.latent.query_rank > 0
    return found.replace(".attn_q.", ".attn_q_b.") if of_latents else found


def gguf_by_our_names(
    found: dict[str, StoredTensor], names: TensorNames, config: ModelConfig
) -> dict[str, StoredTensor]:
    """Does what by_our_names does with a GGUF file's tensors, whose NVFP4 matrices get their
    factors."""
    ours = by_our_names(found, names, config)
    return {name: _as_matrix(stored) for name, stored in ours.items()}


def _as_matrix(stored: StoredTensor) -> StoredTensor:
    """Returns a matrix of type NVFP4 as that of a checkpoint, with its factor; else `stored`."""
    if stored.format != NVFP4 or len(stored.shape) != 2:
        return stored
    if len(stored.factors) > 1:
        raise UnsupportedModel(f"tensor {stored.name} has {len(stored.factors)} scales")
    (factor,) = stored.factors or (1.0,)
    matrix = NVFP4Blocks.of(stored.name, stored.shape, stored.data, factor)
    return replace(CheckpointTensor.of(matrix, stored.name), rearrange=stored.rearrange)


def named_tensors(files: tuple[str, ...]) -> dict[str, StoredTensor]:
    """Returns what gguf_tensors does, with fused and stacked ones as the files have them."""
    found: dict[str, StoredTensor] = {}
    all_parts = [(path, GGUFFile(path, vocabulary=False).tensors) for path in files]
    tensors = {name: each for _, part in all_parts for name, each in part.items()}
    for path, part in all_parts:
        for tensor in part.values():
            stem, _, kind = tensor.name.rpartition(".")
            weight = tensors.get(f"{stem}.weight")
            if kind in _SCALES and weight is not None and weight.type == NVFP4:
                continue
            name = from_gguf(tensor.name)
            if name in found:
                raise UnsupportedModel(f"{path}: the tensor {tensor.name} is in another part too")
            found[name] = StoredTensor(
                tensor.name,
                _our_shape(name, tensor.shape),
                tensor.type,
                tensor.data,
                spare=tensor.name in (SHORT_FACTORS, LONG_FACTORS),  # ModelConfig has them
                factors=_factors(tensors.get(f"{stem}.scale")) if tensor.type == NVFP4 else (),
            )
    return found


NVFP4 = "NVFP4"
_SCALES = ("scale", "input_scale")
"""Tensors next to a matrix of NVFP4: its factor, and one of activations, which aren't quantised
here."""


def _factors(scale: GGUFTensor | None) -> tuple[float, ...]:
    if scale is None:
        return ()
    if scale.type != "F32" or len(scale.shape) != 1:
        raise UnsupportedModel(f"tensor {scale.name} is {scale.type} {scale.shape}, not F32 scales")
    return tuple(scale.data.view("<f4").tolist())


_VECTORS = ("recurrent.A", "recurrent.D", "recurrent.norm.weight")
_CONVOLUTIONS = tuple(f"recurrent.{each}conv.weight" for each in ("", "q_", "k_", "v_"))


def _our_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The hub's shape of a tensor, where files have the same numbers in another."""
    if name.endswith(_VECTORS):
        return (math.prod(shape),)
    if name.endswith(_CONVOLUTIONS):
        return (math.prod(shape[:-1]), 1, shape[-1])
    if name.endswith("shared_expert_gate.weight") and len(shape) == 1:
        return (1, *shape)
    return shape


# The tensors of a Hugging Face checkpoint, in our naming.


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


# Reads the tensors of llama.cpp's mmproj files.


def read_tensors(
    file: GGUFFile, ours: Callable[[str], str | None], flat: frozenset[str] = frozenset()
) -> dict[str, StoredTensor]:
    """Returns a file's tensors by our names. ours: the name for one of the file's; None for one
    that isn't needed.  flat: our names of tensors that may have dimensions of one element around
    their own.  Raises UnsupportedModel for two tensors of one meaning."""
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
