"""What the tiny models that see have in common, and one of them as settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.forms.fixed import FixedImages
from penstock.forms.patches import PatchImages
from penstock.forms.pixels import Pixels
from penstock.forms.registry import ImagePreparation
from penstock.model.tower_spec import VisionSpec

PLACEHOLDER = 190
POSITIONS = 256
TEXT: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SEES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}
WIDE = TEXT | {"hidden_size": 96}
"""Where a head's size follows from the hidden one's: 16, as on the CPU kernels."""
SECTIONS = {"rope_type": "default", "mrope_section": [2, 1, 5], "rope_theta": 100.0}
QWEN_TOKENS = {
    "image_token_id": PLACEHOLDER,
    "video_token_id": 191,
    "vision_start_token_id": 192,
    "vision_end_token_id": 193,
}
QWEN_TOWER = {"num_heads": 4, "patch_size": 4, "initializer_range": 0.2}
SECTIONS_3 = {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 100.0}
QWEN3_TOWER = QWEN_TOWER | {
    "depth": 3,
    "hidden_size": 48,
    "out_hidden_size": 72,
    "intermediate_size": 52,
    "num_position_embeddings": 25,
    "deepstack_visual_indexes": [0, 2],
}
COLOURS = Pixels(resample=3, rescale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))


QWEN_PATCHES = PatchImages(pixels=COLOURS, min_pixels=64, max_pixels=4096, patch=4, merge=2)


@dataclass(frozen=True)
class Case:
    """transformers' class (without its end), its settings, and how pictures are prepared."""

    family: str
    settings: dict[str, Any]
    preparation: ImagePreparation
    made: Callable[[Any], Any] | None = None
    """Makes the model of a configuration, of a family that transformers has no class of."""
    stands_for: str = ""
    """The class that config.json names then; empty: transformers'."""

    def config(self) -> Any:
        import transformers

        def made(section: dict[str, Any]) -> Any:
            name = section.get("class")
            rest = {key: value for key, value in section.items() if key != "class"}
            return rest if name is None else getattr(transformers, name)(**rest)

        parts = {
            key: made(value) if isinstance(value, dict) else value
            for key, value in self.settings.items()
        }
        return getattr(transformers, f"{self.family}Config")(**parts)


def fixed(size: int, rows: int) -> FixedImages:
    return FixedImages(pixels=COLOURS, height=size, width=size, rows=rows)


def all_read(spec: VisionSpec) -> VisionSpec:
    """`spec`, but of files without layers behind those that are read, as mmproj files are."""
    tower = msgspec.structs.replace(spec.tower, unread_layers=0)
    return msgspec.structs.replace(spec, tower=tower)
