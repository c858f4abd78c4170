"""Served model families: all that the modules of this package and of the bundled ones define and
that config.json has a class for. Those with a vision tower are in penstock.families.vision.served.

Importing this imports every family. Readers of prepared models use `finding`, which imports one.
"""

from penstock.config.bundled import defining
from penstock.config.plugins import FAMILIES as GROUP
from penstock.families.family import EncoderFamily, Family
from penstock.families.hearing import AudioFamily

AnyFamily = Family | EncoderFamily | AudioFamily
_MODULES = defining("penstock.families", GROUP, but=__name__)
_FOUND: list[AnyFamily] = [
    each for module in _MODULES for each in vars(module).values() if isinstance(each, AnyFamily)
]

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
"""Families of models with an audio tower, by WeightFiles.tower. The decoder after it is one of
FAMILIES. (Whisper's, which attends to what its encoder makes of a sound, is one itself.)"""

AUDIO_CLASSES: dict[str, AudioFamily] = {
    name: family for family in AUDIO_FAMILIES.values() for name in family.hub_classes
}
"""Families with an audio tower, by the class that a hub folder's config.json names."""


def module_of(name: str) -> str:
    """Returns the module that defines a decoder's family; empty for a plug-in's."""
    family = FAMILIES.get(name)
    holders = [each.__name__ for each in _MODULES if family in vars(each).values()]
    return min(holders, default="", key=lambda module: module.rpartition(".")[2] != name)
