"""The families of models that are served: all that the modules here define and that config.json has
a class for. Those that see are in penstock.families.vision."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from penstock.families.family import EncoderFamily, Family
from penstock.families.hearing import AudioFamily


def _defined() -> Iterator[Family | EncoderFamily | AudioFamily]:
    for module in iter_modules(__path__):
        if not module.ispkg:
            for each in vars(import_module(f"{__name__}.{module.name}")).values():
                if isinstance(each, Family | EncoderFamily | AudioFamily):
                    yield each


_FOUND = list(_defined())

FAMILIES: dict[str, Family] = {
    each.name: each
    for each in sorted(
        (each for each in _FOUND if isinstance(each, Family) and each.hub_classes),
        key=lambda each: each.known_as.casefold(),
    )
}
"""Decoders, by ModelConfig.architecture, in the order of what people call them."""

MODEL_NAMES = ", ".join(family.known_as for family in FAMILIES.values())
"""What people call the decoders that are served."""

GGUF_ARCHITECTURES: dict[str, Family] = {
    name: family
    for family in FAMILIES.values()
    if family.gguf is not None
    for name in (family.gguf, *family.gguf_also)
}
"""Decoder families by the architecture that a GGUF file names."""

HUB_CLASSES: dict[str, Family] = {
    name: family for family in FAMILIES.values() for name in family.hub_classes
}
"""Decoder families by the class that a hub folder's config.json names."""

ENCODERS: dict[str, EncoderFamily] = {
    each.name: each for each in _FOUND if isinstance(each, EncoderFamily)
}
"""Encoder families by EncoderConfig.family."""

ENCODER_TYPES: dict[str, EncoderFamily] = {
    kind: family for family in ENCODERS.values() for kind in family.model_types
}
"""Encoder families by the model_type that a hub folder's config.json names."""

GGUF_ENCODERS: dict[str, EncoderFamily] = {
    name: family
    for family in ENCODERS.values()
    for name in (family.gguf, *family.gguf_also)
    if name
}
"""Encoder families by the architecture that a GGUF file names, but for those whose files are
BERT's."""

AUDIO_FAMILIES: dict[str, AudioFamily] = {
    each.name: each
    for each in sorted(
        (each for each in _FOUND if isinstance(each, AudioFamily)),
        key=lambda each: each.known_as.casefold(),
    )
}
"""Families of models whose tower hears, by WeightFiles.tower. The decoder after it is one of
FAMILIES. (Whisper's, which attends to what its encoder makes of a sound, is one itself.)"""

AUDIO_CLASSES: dict[str, AudioFamily] = {
    name: family for family in AUDIO_FAMILIES.values() for name in family.hub_classes
}
"""Families that hear, by the class that a hub folder's config.json names."""

__all__ = [
    "AUDIO_CLASSES",
    "AUDIO_FAMILIES",
    "ENCODERS",
    "ENCODER_TYPES",
    "FAMILIES",
    "GGUF_ARCHITECTURES",
    "GGUF_ENCODERS",
    "HUB_CLASSES",
    "MODEL_NAMES",
    "EncoderFamily",
    "Family",
]
