"""Served vision families: all that the modules of this package and of the bundled ones define.

The decoder after a tower is one of penstock.families.served.FAMILIES.
"""

from penstock.config.bundled import VISION_FAMILIES as GROUP
from penstock.config.bundled import defining
from penstock.families.vision.reading import VisionFamily

_MODULES = defining("penstock.families.vision", GROUP, but=__name__)
_FOUND = [each for own in _MODULES for each in vars(own).values() if isinstance(each, VisionFamily)]

VISION_FAMILIES: dict[str, VisionFamily] = {
    each.name: each for each in sorted(_FOUND, key=lambda each: each.known_as.casefold())
}
"""Families that see by WeightFiles.tower, in the order of what people call them."""

VISION_CLASSES: dict[str, VisionFamily] = {
    name: family for family in VISION_FAMILIES.values() for name in family.hub_classes
}
"""Families by the class that a hub folder's config.json names."""
