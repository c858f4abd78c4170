"""What is to be known about a family of decoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.formats.fields import Fields


def _no_more(fields: Fields) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """A family is Llama but for what is said here."""

    name: str
    """ModelConfig.architecture, and `general.architecture` of GGUF files."""
    hub_classes: tuple[str, ...]
    """Names in `architectures` of a hub folder's config.json."""
    known_as: str
    """What people call its models, with commas."""
    always_qkv_bias: bool = False
    """Whether q, k and v have biases whatever the config says; else attention_bias gives q, k, v
    and the output projection one."""
    qk_norm: bool = False
    """RMSNorm over each head of q and k before the rotary embedding."""
    default_head_dim: int | None = None
    """Where config.json doesn't say; None: hidden size / heads."""
    gguf_pairs_adjacent: bool = False
    """Whether GGUF files keep the rows of q and k so that a rotary pair is adjacent; else it lies
    half a head apart, as in the hub's files."""
    hub_values: Callable[[Fields], dict[str, Any]] = _no_more
    """config.json -> fields of ModelConfig that the family's files say in their own way. Raises
    UnsupportedModel for a variant that isn't served."""
    gguf_values: Callable[[Fields], dict[str, Any]] = _no_more
    """The same of the architecture's keys in a GGUF file's metadata."""
