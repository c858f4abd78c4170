"""The tensors of a GGUF file, in our naming."""

from __future__ import annotations

import math
from dataclasses import replace

from penstock.errors import UnsupportedModel
from penstock.families.finding import served_family
from penstock.families.gguf_reading import LONG_FACTORS, SHORT_FACTORS
from penstock.families.tensor_names import TensorNames
from penstock.formats.gguf import GGUFFile, GGUFTensor
from penstock.model.config import ModelConfig
from penstock_worker.quantisation.checkpoints.nvfp4 import NVFP4Blocks
from penstock_worker.weights.family_names import by_our_names, in_file
from penstock_worker.weights.names import from_gguf, to_gguf
from penstock_worker.weights.stored import CheckpointTensor, StoredTensor


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
