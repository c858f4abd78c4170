"""The name that an encoder's files would have for a missing tensor, for the error message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from penstock.families.family import ClassifierHead
from penstock.families.served import ENCODERS
from penstock.families.tensor_names import TensorNames
from penstock.model.config import EncoderConfig, SharedSpace
from penstock_worker.pooling.encoder.names import HEADS
from penstock_worker.weights.family_names import in_file
from penstock_worker.weights.lacking_names import name_of_another
from penstock_worker.weights.names import to_gguf
from penstock_worker.weights.stored import StoredTensor

_LAYER = re.compile(r"layers\.(\d+)\.(.+)", re.DOTALL)
_VECTOR = "vector."


def encoder_file_name(
    name: str, tensors: Mapping[str, StoredTensor], config: EncoderConfig, format: str
) -> str:
    """Returns the files' name for a tensor of ours that an encoder lacks. `tensors`: what they
    have, by our names; `format`: WeightFiles.format."""
    family = ENCODERS[config.family]
    by_number = _LAYER.fullmatch(name) is None or not config.shared_layers
    if by_number and (found := name_of_another(name, tensors)) is not None:
        return found
    if format == "gguf":
        of_head = _head_in_gguf(name, family.head)
        return of_head or to_gguf(in_file(name, family.gguf_names))
    if name.startswith(_VECTOR) and config.space is not None:
        return f"{_vector(config.space)}.{name.removeprefix(_VECTOR)}"
    if name.startswith(HEADS):
        return name
    inner = _named(name, family.layer_names)
    match = _LAYER.fullmatch(inner)
    if match is None:
        return _around(tensors, family.layer_names) + inner
    if config.shared_layers:
        group, within = config.shared_layers[int(match[1])].split(".")
        begin = _around(tensors, family.layer_names)
        layer = f"encoder.albert_layer_groups.{group}.albert_layers.{within}"
        return f"{begin}{layer}.{match[2]}"
    return f"{_before_number(tensors, family.layer_names)}{match[1]}.{match[2]}"


def _named(name: str, names: TensorNames) -> str:
    """Returns what the family's files call it, of one tensor with several modules' rows that."""
    fused = in_file(name, replace(names, modules={}))
    return fused if fused != name else in_file(name, names)


def _around(tensors: Mapping[str, StoredTensor], names: TensorNames) -> str:
    """Returns what the files have in front of tensors outside of layers and heads."""
    for ours, stored in tensors.items():
        inner = in_file(ours, names)
        apart = not ours.startswith(HEADS) and _LAYER.fullmatch(ours) is None
        if apart and stored.name.endswith(inner):
            return stored.name.removesuffix(inner)
    return ""


def _before_number(tensors: Mapping[str, StoredTensor], names: TensorNames) -> str:
    """Returns what the files have in front of a layer's number."""
    for ours, stored in tensors.items():
        match = _LAYER.fullmatch(ours)
        inner = _LAYER.fullmatch(in_file(ours, names))
        for each in (inner, match):
            end = "" if each is None else f"{each[1]}.{each[2]}"
            if end and stored.name.endswith(f".{end}"):
                return stored.name.removesuffix(end)
    return "layers."


def _vector(space: SharedSpace) -> str:
    return "text_model.head" if space.bias else "text_projection"


def _head_in_gguf(name: str, head: ClassifierHead | None) -> str | None:
    """Returns the other way round what `with_head` does; None for what isn't the head's."""
    stem, _, kind = name.rpartition(".")
    if head is None or not stem:
        return None
    theirs = {head.inner: "cls", head.outer: "cls.output", head.norm: "cls.norm"}
    return f"{theirs[stem]}.{kind}" if stem in theirs else None
