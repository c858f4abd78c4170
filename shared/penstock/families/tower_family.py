"""A family of models that also see or hear: what the system must know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.errors import UnsupportedModel
from penstock.families.family import Family
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig

TEXT = "text_config"


@dataclass(frozen=True)
class TextHalf:
    """A decoder that stands after a tower."""

    family: Family
    """The decoder's family."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What transformers' class of configurations has where config.json says nothing: a file that
    was made with an older release says only what differs from it."""


@dataclass(frozen=True)
class TowerFamily:
    """A family of models with a tower: how their files say what they see or hear with."""

    name: str
    hub_classes: tuple[str, ...]
    """What config.json calls them."""
    known_as: str
    """The family's name for people."""
    halves: Mapping[str, TextHalf]
    """Decoders by the model_type of the section about them."""
    read: Callable[[Fields, Fields, ModelConfig], Any]
    """Reads config.json as a whole, and its section about the tower; the decoder is known already.
    Raises UnsupportedModel for a tower that isn't served."""
    usual: str
    """The model_type where config.json says none."""
    flat: Callable[[Fields], Fields] | None = None
    """Returns the decoder's settings of a config.json without a section about it."""
    harmless: frozenset[str] = frozenset()
    """Keys of config.json beside the two sections that change nothing here."""
    ignored: tuple[str, ...] = ()
    """Keys of the decoder's section that change nothing here."""

    SECTION: ClassVar[str]
    """Name of config.json's section about the tower."""
    PART: ClassVar[str]
    """The field of ModelConfig that holds what is read."""

    def text_half(self, fields: Fields) -> tuple[TextHalf, Fields]:
        """Returns the decoder and its settings. Raises UnsupportedModel for one that isn't served
        after this tower."""
        section = fields.section(TEXT)
        if not section.values and self.flat is not None:
            section = self.flat(fields)
        kind = section.text("model_type", self.usual)
        half = self.halves.get(kind)
        if half is None:
            raise UnsupportedModel(
                f"{section.where}: model_type {kind[:80]!r} is not served behind the tower of "
                f"{self.known_as}; {', '.join(self.halves)} are"
            )
        section = section.completed(**half.defaults)
        section.ignore(*self.ignored)
        return half, section
