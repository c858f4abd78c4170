"""A model that transformers has no class of, and that one of its classes computes under other
names: its files are made of what that class saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.worker.models.gguf_writing import Conversion

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Twin:
    """A tiny model of such a family."""

    architecture: str
    """What config.json calls it."""
    computed_by: str
    """The family that transformers has a class of."""
    settings: dict[str, Any]
    """Of that class."""
    says: Callable[[Any], dict[str, Any]]
    """What config.json says beyond that class's own, of a configuration of it."""
    files: Callable[[Tensors, Any], Tensors]
    """The tensors of the family's files, of those that transformers saved and a configuration."""
    begins: Callable[[Any], None] = lambda model: None
    """Changes transformers' model before anything is computed or saved."""
    gguf: Conversion | None = None
    """How llama.cpp's converter writes it."""
    gguf_files: Callable[[Tensors, Any], Tensors] = field(default=lambda tensors, config: tensors)
    """The tensors that are converted, by transformers' names."""

    @property
    def name(self) -> str:
        return self.architecture.removesuffix("ForCausalLM").removesuffix(
            "ForConditionalGeneration"
        )


def renamed(*names: tuple[str, str]) -> Callable[[Tensors, Any], Tensors]:
    """Replaces parts of names, (transformers', the family's)."""

    def files(tensors: Tensors, config: Any) -> Tensors:
        found = {}
        for name, tensor in tensors.items():
            for theirs, own in names:
                name = name.replace(theirs, own)
            found[name] = tensor
        return found

    return files


def joined(tensors: Tensors, *names: str, into: str) -> Tensors:
    """Puts the rows of several modules one after another."""
    found = dict(tensors)
    for name in tensors:
        if names[0] in name:
            parts = [found.pop(name.replace(names[0], each)) for each in names]
            found[name.replace(names[0], into)] = torch.cat(parts)
    return found


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
