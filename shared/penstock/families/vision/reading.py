"""A family of models that see, and what the readers of towers have in common: CLIP's and
SigLIP's, and their bounds.

Source of the keys: the configuration classes of the transformers library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.errors import UnsupportedModel
from penstock.families.bounds import layer_count
from penstock.families.family import TextHalf, TowerFamily
from penstock.families.media_tokens import MediaTokens
from penstock.families.vision.image_processor import ImageSettings
from penstock.families.vision.video_processor import VideoSettings
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec

VISION = "vision_config"


PictureReader = Callable[[ImageSettings, Fields, MediaTokens], KindFacts]
"""Reads how pictures are prepared, by the settings of their processor and config.json. Raises
UnsupportedModel for what can't be followed."""
Makers = Callable[[dict[str, Any], dict[str, Any], str], dict[str, Any]]
"""Returns a processor's settings as transformers has them, of those in the makers' own file and in
the one of the processor as a whole; empty: there are none. The text says where they stand. Raises
UnsupportedModel."""


@dataclass(frozen=True)
class Videos:
    """How a family's videos are prepared."""

    read: Callable[[VideoSettings, Fields, MediaTokens], KindFacts]
    """Reads the settings of the video processor; see PictureReader."""
    processor: str
    """Class of the processor where a folder names none."""
    of_classes: Mapping[str, str] = field(default_factory=dict)
    """Class of the processor where a folder names none, by the family's classes that have another
    one."""
    token: str = ""
    """What stands for a video, where config.json doesn't name it."""
    makers: Makers | None = None
    named: bool = False
    """Whether a file that names no class of a video processor is about pictures alone."""


@dataclass(frozen=True)
class VisionFamily(TowerFamily):
    """A family of models that see: how their files say what VisionSpec says, and how pictures and
    videos are prepared."""

    read: Callable[[Fields, Fields, ModelConfig], VisionSpec | None]
    pictures: PictureReader | None = None
    """None: of a family that another one's class reads."""
    videos: Videos | None = None
    """None: the models take none."""
    makers: Makers | None = None
    """None: makers' files are as transformers has them."""
    may_be_blind: bool = False
    """Whether a config.json without a section about the tower is of a model with audio only."""

    SECTION: ClassVar[str] = VISION
    PART: ClassVar[str] = "vision"


__all__ = ["VISION", "TextHalf", "Videos", "VisionFamily"]


MAX_WIDTH = 65_536
MAX_HEADS = 4096
MAX_PATCH = 256
MAX_SIDE = 1024
"""Patches in a row of a picture that has a table of positions."""
MAX_PIXELS = 16_384
"""Rows of pixels of a picture that has a fixed size."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
PROJECTOR_ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
HARMLESS = frozenset(
    {
        "_attn_implementation_autoset",
        "dropout",
        "hidden_dropout_prob",
        "is_composition",
        "projection_dim",  # of CLIP's own head, as the next
        "vocab_size",
    }
)
"""Keys about a tower that don't change what is computed, beyond those of decoders."""


def bounded(fields: Fields, key: str, most: int, default: int | None = None) -> int:
    """A positive size. Raises UnsupportedModel for one that no tower has."""
    value = fields.integer(key, default)
    if not 1 <= value <= most:
        raise UnsupportedModel(f"{fields.where}: {key} is {value}; 1 to {most} are allowed")
    return value


def activation(fields: Fields, default: str, key: str = "hidden_act") -> Any:
    """The tower's activation, as TowerSpec names it."""
    named = fields.text(key, default)
    if named not in ACTIVATIONS:
        raise UnsupportedModel(
            f"{fields.where}: {key} {named[:80]!r} is not served; {', '.join(ACTIVATIONS)} are"
        )
    return ACTIVATIONS[named]


def heads(fields: Fields, key: str, hidden: int, default: int | None = None) -> int:
    """Raises UnsupportedModel for heads that don't divide the hidden size."""
    count = bounded(fields, key, MAX_HEADS, default)
    if hidden % count:
        raise UnsupportedModel(
            f"{fields.where}: {count} attention heads don't divide the hidden size {hidden}"
        )
    return count


def patches_in_row(fields: Fields, image: int, patch: int) -> int:
    """Patches in a row of a picture that is `image` pixels wide. Pixels that are left over aren't
    seen."""
    side = image // patch
    if not 1 <= side <= MAX_SIDE:
        raise UnsupportedModel(
            f"{fields.where}: image_size {image} has {side} patches of {patch} in a row; 1 to "
            f"{MAX_SIDE} are allowed"
        )
    return side


def clip_tower(section: Fields, layer: int, *, keeps_class: bool) -> tuple[TowerSpec, int]:
    """Radford et al., "CLIP", 2021: a class token, a norm of the embedded patches. layer: whose
    output is taken, counted from the embedded patches, 0; below 0 from the last. Returns the tower
    and the size of its pictures."""
    return _vit(
        section.completed(image_size=224, patch_size=32, hidden_act="quick_gelu"),
        layer,
        eps=1e-5,
        class_token=True,
        keeps_class=keeps_class,
        first_norm=True,
    )


def siglip_tower(
    section: Fields, layer: int | None = None, *, fractional: bool = False
) -> tuple[TowerSpec, int]:
    """Zhai et al., "SigLIP", 2023: a norm after the last layer, where that one's output is taken
    (layer None)."""
    section = section.completed(
        image_size=224, patch_size=32 if fractional else 16, hidden_act="gelu_pytorch_tanh"
    )
    if section.values.get("vision_use_head"):
        section.ignore("vision_use_head")  # pools, and comes after what is taken
    return _vit(
        section,
        -1 if layer is None else layer,
        eps=1e-6,
        patch_bias=True,
        last_norm=layer is None,
        fractional=fractional,
    )


def _vit(
    section: Fields,
    layer: int,
    *,
    eps: float,
    fractional: bool = False,
    **parts: Any,
) -> tuple[TowerSpec, int]:
    size = {"hidden_size": 1152 if fractional else 768, "intermediate_size": 3072}
    section = section.completed(**size, num_hidden_layers=12)
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    patch = bounded(section, "patch_size", MAX_PATCH)
    image = bounded(section, "image_size", MAX_PIXELS)
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        **layers_up_to(section, layer),
        num_heads=heads(section, "num_attention_heads", hidden, 16 if fractional else 12),
        patch=patch,
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", eps), bias=True),
        activation=activation(section, "gelu"),
        positions=LearnedPositions(
            side=patches_in_row(section, image, patch), fractional=fractional
        ),
        **parts,
    )
    only_colours(section, "num_channels")
    return tower, image


def projector_activation(fields: Fields) -> Any:
    """Activation of a projector of two products: one of MLPProjector's."""
    act = fields.text("projector_hidden_act", "gelu")
    if act not in PROJECTOR_ACTIVATIONS:
        raise fields.wrong("projector_hidden_act", " or ".join(PROJECTOR_ACTIVATIONS))
    return PROJECTOR_ACTIVATIONS[act]


def only_colours(section: Fields, *keys: str) -> None:
    """Raises UnsupportedModel for pictures of another number of channels than three."""
    for key in keys:
        if section.integer(key, 3) != 3:
            raise section.wrong(key, "3")


def layers_up_to(section: Fields, layer: int) -> dict[str, Any]:
    """TowerSpec's num_layers and unread_layers, if the output of that layer is taken."""
    count = layer_count(section, "num_hidden_layers")
    computed = computed_layers(section, layer, count)
    return {"num_layers": computed, "unread_layers": count - computed}


def computed_layers(section: Fields, layer: int, count: int) -> int:
    """How many layers are computed, if the output of that one is taken."""
    computed = layer if layer >= 0 else count + 1 + layer
    if not 0 <= computed <= count:
        raise UnsupportedModel(
            f"{section.where}: the output of layer {layer} is taken, and there are {count}"
        )
    return computed


def feed_forward_of(section: Fields, hidden: int) -> int:
    """Outputs of a feed-forward's first product, which are mlp_ratio times as many as its
    inputs."""
    ratio = section.number("mlp_ratio", 4.0)
    inner = int(hidden * ratio) if 0 < ratio <= MAX_WIDTH else 0
    if not 1 <= inner <= MAX_WIDTH:
        raise section.wrong("mlp_ratio", f"one that gives 1 to {MAX_WIDTH}")
    return inner


def stated(section: Fields, **values: Any) -> None:
    """Raises UnsupportedModel unless the settings say all of these."""
    for key, value in values.items():
        if section.values.get(key) != value:
            raise section.wrong(key, "true" if value is True else str(value))
        section.ignore(key)
