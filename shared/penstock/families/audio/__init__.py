"""The families of models whose tower hears, one to a module. A new one needs its line here.

The decoder after a tower is one of penstock.families.FAMILIES. (Whisper's, which attends to what
its encoder makes of a sound, is one itself.)
"""

from penstock.families.audio.family import AudioFamily
from penstock.families.audio.qwen2_audio import QWEN2_AUDIO
from penstock.families.audio.voxtral import VOXTRAL

AUDIO_FAMILIES: dict[str, AudioFamily] = {each.name: each for each in (QWEN2_AUDIO, VOXTRAL)}

AUDIO_CLASSES: dict[str, AudioFamily] = {
    name: family for family in AUDIO_FAMILIES.values() for name in family.hub_classes
}
"""Families by the class that a hub folder's config.json names."""

__all__ = ["AUDIO_CLASSES", "AUDIO_FAMILIES", "AudioFamily"]
