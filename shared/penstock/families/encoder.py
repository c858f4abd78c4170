"""A family of encoders: what the system must know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penstock.families.family import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig


class ClassifierHead(NamedTuple):
    """Tensors of a classification head over an input's vector, and what lies between its layers."""

    inner: str
    outer: str
    activation: Literal["tanh", "relu", "gelu"]
    norm: str = ""
    """A layer norm after the activation."""


@dataclass(frozen=True)
class EncoderFamily:
    """A family is BERT but for what is said here."""

    name: str
    """EncoderConfig.family, and what a checkpoint may put in front of its tensors' names."""
    model_types: tuple[str, ...]
    """Values of `model_type` in config.json."""
    prefixes: tuple[str, ...] = ()
    """What else a checkpoint may put there."""
    head: ClassifierHead | None = None
    both_ways_key: str = ""
    """A flag of config.json without which a model of this type is a decoder."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """config.json's own names for keys that BERT's has."""
    first_behind_padding: bool = False
    """Whether positions count from the number after the padding token's id."""
    token_types: int = 0
    """How many there are where config.json doesn't say; 0: the family has none."""
    relative_buckets: int = 0
    """Buckets of the relative attention bias, where config.json doesn't say; 0: the family has
    none."""
    tensors: tuple[tuple[str, str], ...] = ()
    """(a part of a tensor's name, BERT's name for it)."""
    read_layers: Callable[[Fields], EncoderConfig] | None = None
    """Reads config.json of a family that isn't BERT: it has a decoder's layers, or keys of its own.
    Raises UnsupportedModel."""
    read_halves: Callable[[Fields, Fields, Fields], EncoderConfig] | None = None
    """Reads config.json of a family that takes pictures, too: the file as a whole, and its sections
    about texts and about pictures. Raises UnsupportedModel."""
    layer_names: TensorNames = field(default_factory=TensorNames)
    """Names of tensors of a family with a decoder's layers."""
