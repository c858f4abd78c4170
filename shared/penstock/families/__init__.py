"""The families of decoders that are served, one to a module. A new one needs its line here."""

from penstock.families.family import Family
from penstock.families.llama import LLAMA
from penstock.families.qwen2 import QWEN2
from penstock.families.qwen3 import QWEN3

FAMILIES: dict[str, Family] = {each.name: each for each in (LLAMA, QWEN2, QWEN3)}
"""By ModelConfig.architecture."""

HUB_CLASSES: dict[str, Family] = {
    name: family for family in FAMILIES.values() for name in family.hub_classes
}
"""By the class that a hub folder's config.json names."""

__all__ = ["FAMILIES", "HUB_CLASSES", "Family"]
