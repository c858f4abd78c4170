"""A family of models that see: what the system must know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from penstock.families.tower_family import TextHalf, TowerFamily
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.vision_spec import VisionSpec

VISION = "vision_config"


@dataclass(frozen=True)
class VisionFamily(TowerFamily):
    """A family of models that see: how their files say what VisionSpec says."""

    read: Callable[[Fields, Fields, ModelConfig], VisionSpec]

    SECTION: ClassVar[str] = VISION
    PART: ClassVar[str] = "vision"


__all__ = ["VISION", "TextHalf", "VisionFamily"]
