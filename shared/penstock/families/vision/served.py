"""Served vision families: all that the modules of this package define.

The decoder after a tower is one of penstock.families.served.FAMILIES.
"""

from importlib import import_module
from pkgutil import iter_modules

from penstock.families import vision
from penstock.families.vision.reading import VisionFamily

_NAMES = (f"{vision.__name__}.{each.name}" for each in iter_modules(vision.__path__))
_MODULES = [vars(import_module(name)) for name in _NAMES if name != __name__]
_FOUND = [each for own in _MODULES for each in own.values() if isinstance(each, VisionFamily)]

VISION_FAMILIES: dict[str, VisionFamily] = {
    each.name: each for each in sorted(_FOUND, key=lambda each: each.known_as.casefold())
}
"""Families that see by WeightFiles.tower, in the order of what people call them."""

VISION_CLASSES: dict[str, VisionFamily] = {
    name: family for family in VISION_FAMILIES.values() for name in family.hub_classes
}
"""Families by the class that a hub folder's config.json names."""
