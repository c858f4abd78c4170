"""A family of decoders: what the system must know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.own_head import LAYER_BEHIND_THE_LAST, OwnHead
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig


@dataclass(frozen=True)
class TensorNames:
    """How a family's files call a layer's modules, and which of them hold several of ours."""

    modules: Mapping[str, str] = field(default_factory=dict)
    """The file's name of a module -> ours, where they differ. `*` stands for an expert's number."""
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The file's name of a module -> ours, in the order of their rows."""
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The file's name of a module whose tensor has one matrix for each expert -> ours, in the order
    of a matrix's rows."""
    alternating: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The file's name of a stack of experts' matrices as gpt-oss has them -> ours, whose rows
    alternate in it (see penstock_worker.weights.alternating)."""
    turned: bool | Literal["always"] = False
    """Whether a stack's matrices may be transposed: they are where they have another number of rows
    than the model's; `always`: in all files."""
    by_head: frozenset[str] = frozenset()
    """Our names of modules whose rows the file has head by head: for each head a part of each of
    the things that the module gives. Ours have all heads of a thing together (see
    penstock_worker.weights.family_names)."""
    shared_alone: bool = False
    """Whether the feed-forward of a layer without experts is called the shared expert."""
    layers_for_drafts: bool = False
    """Whether layers after the last one belong to a draft head, which isn't read."""
    zero_biases: tuple[str, ...] = ()
    """Our names of modules of every layer without biases, whose products are computed together with
    others that have some: theirs are zeros."""
    unit_norms: bool = False
    """Whether norms of queries and keys have no weights in the file: theirs are ones."""
    pairs_adjacent: bool = False
    """Whether the rows of q and k, and the weights of their norms, are ordered so that the numbers
    of a rotary pair are adjacent."""


@dataclass(frozen=True)
class Family:
    """A family of decoders: how its files say what ModelConfig says."""

    name: str
    """ModelConfig.architecture."""
    hub_classes: tuple[str, ...]
    """Names in `architectures` of a hub folder's config.json."""
    known_as: str
    """What people call its models, with commas."""
    read_hub: Callable[[Fields], ModelConfig]
    """Reads config.json. Raises UnsupportedModel for a variant that isn't served."""
    gguf: str | None = None
    """`general.architecture` of GGUF files; None: they aren't served."""
    gguf_also: tuple[str, ...] = ()
    """Further ones, of variants of the family."""
    read_gguf: Callable[[GGUFMetadata], ModelConfig] | None = None
    hub_names: TensorNames = TensorNames()
    gguf_names: TensorNames = TensorNames()
    own_head: OwnHead = LAYER_BEHIND_THE_LAST
    """The head that drafts in safetensors files that have one. In GGUF files it stands after the
    last layer."""
