"""What a hub folder says about the media that its model takes.

preprocessor_config.json, or `image_processor` in processor_config.json, says how pictures become
pixels; config.json which tokens stand for them; defaults are those of transformers' image
processors.  Unknown settings there are errors, as in config.json.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from penstock.families import clip
from penstock.families.media_tokens import MediaTokens
from penstock.families.vision.gemma3n import EXTRACTOR as GEMMA3N
from penstock.families.vision.image_processor import ImageSettings, check_all_read
from penstock.families.vision.reading import Makers, Videos, VisionFamily
from penstock.families.vision.served import VISION_CLASSES
from penstock.families.vision.video_processor import VideoSettings
from penstock.families.vision.video_processor import check_all_read as check_video_read
from penstock.families.vision.videos import KEYS
from penstock.formats.fields import Fields
from penstock.model.audio_spec import (
    AudioSpec,
    BiasedConformerSpec,
    BlockConformerSpec,
    ConformerSpec,
    SoundTowerSpec,
    WaveformSpec,
)
from penstock.model.media_facts import KindFacts, MediaFacts, MediaKind
from penstock.model.sound_projector_spec import EmbedderProjector
from penstock.prepare.added_tokens import json_of
from penstock.prepare.hub_config import classes_of
from penstock.prepare.inputs import PREPROCESSOR, PROCESSOR, VIDEO_PREPROCESSOR
from penstock.prepare.phi_readers import PHI4, phi4_sounds
from penstock.prepare.sound_readers import (
    GEMMA4,
    GEMMA4_UNIFIED,
    GRANITE,
    gemma3n_sounds,
    gemma4_sounds,
    gemma4_unified_sounds,
    granite_sounds,
)
from penstock.prepare.sounds import read_sounds
from penstock.text.tokenizer import Tokenizer


def read_media(
    path: Path, config: Fields, tokenizer_json: bytes, audio: AudioSpec | None = None
) -> MediaFacts | None:
    """None for a model that takes no media, and where the folder doesn't say how to prepare them.

    config: config.json.  audio: the model's audio encoder.  Raises UnsupportedModel for settings
    that can't be followed.
    """
    config = config.replaced({"architectures": classes_of(config)})
    tokenizer = Tokenizer.from_bytes(tokenizer_json, add_bos=False, bos_token_id=None)
    tokens = MediaTokens(tokenizer, config)
    kinds: dict[MediaKind, KindFacts] = {}
    family = vision_family(config)
    image = _read_pictures(path, family, config, tokens)
    if image is not None:
        kinds["image"] = image
        video = _read_videos(path, family, config, tokens)
        if video is not None:
            kinds["video"] = video
    sound = None if audio is None else _read_sounds(path, config, audio, tokens)
    if sound is not None:
        kinds["audio"] = sound
    return MediaFacts(kinds=kinds) if kinds else None


def _read_sounds(
    path: Path, config: Fields, audio: AudioSpec, tokens: MediaTokens
) -> KindFacts | None:
    values, where = _section(path, "feature_extractor", "audio_processor")
    own = next((each for each in OWN_SOUNDS if each.are_of(audio)), None)
    if own is None:
        return read_sounds(values, where, config, audio, tokens) if values else None
    if values.get("feature_extractor_type") not in own.extractors:
        return None
    return own.read(values, where, audio, tokens)


def vision_family(config: Fields) -> VisionFamily | None:
    """The family of a model that sees, by config.json; None: it doesn't, or embeds texts, too."""
    names = config.listed("architectures", str)
    return next((VISION_CLASSES[name] for name in names if name in VISION_CLASSES), None)


def _read_pictures(
    path: Path, family: VisionFamily | None, config: Fields, tokens: MediaTokens
) -> KindFacts | None:
    read, makers = (None, None) if family is None else (family.pictures, family.makers)
    if not set(clip.CLASSES).isdisjoint(config.listed("architectures", str)):
        read = clip.pictures
    if read is None:
        return None
    if family is not None and family.may_be_blind and not config.section("vision_config").values:
        return None
    found = _by_makers(path, makers, *_section(path, "image_processor"))
    if not found[0]:
        return None
    settings = ImageSettings(*found)
    image = read(settings, config, tokens)
    check_all_read(settings)
    return image


def _read_videos(
    path: Path, family: VisionFamily | None, config: Fields, tokens: MediaTokens
) -> KindFacts | None:
    if family is None or family.videos is None:
        return None
    values, where = _by_makers(path, family.videos.makers, *_video_section(path))
    return read_video(family.videos, values, where, config, tokens)


def read_video(
    videos: Videos, values: dict[str, Any], where: str, config: Fields, tokens: MediaTokens
) -> KindFacts | None:
    """None where no token stands for a video. values, where: of the folder's file.  config:
    config.json.  Raises UnsupportedModel."""
    known = tokens.knows(videos.token) if videos.token else any(map(tokens.has, KEYS))
    if not known or (videos.named and "video_processor_type" not in values):
        return None
    names = config.listed("architectures", str)
    usual = next((videos.of_classes[name] for name in names if name in videos.of_classes), "")
    settings = VideoSettings(values, where, usual or videos.processor)
    found = videos.read(settings, config, tokens)
    check_video_read(settings)
    return found


def _by_makers(
    path: Path, makers: Makers | None, values: dict[str, Any], where: str
) -> tuple[dict[str, Any], str]:
    """Settings as transformers has them, and where they stand."""
    if makers is None:
        return values, where
    if not values:
        where = str(path / PROCESSOR)
    return makers(values, json_of(path / PROCESSOR), where), where


def _section(path: Path, *names: str) -> tuple[dict[str, Any], str]:
    """A part of the processor's settings, whatever its name, and where they stand; empty if the
    folder has none."""
    whole = json_of(path / PROCESSOR)
    for name in names:
        inner = whole.get(name)
        if isinstance(inner, dict):
            return inner, f"{path / PROCESSOR}, {name}"
    return json_of(path / PREPROCESSOR), str(path / PREPROCESSOR)


def _video_section(path: Path) -> tuple[dict[str, Any], str]:
    """Settings of the video processor, and where they stand, as transformers looks for them: a
    folder that is older than video processors has the same for pictures and videos."""
    inner = json_of(path / PROCESSOR).get("video_processor")
    if isinstance(inner, dict):
        return inner, f"{path / PROCESSOR}, video_processor"
    for file in (path / VIDEO_PREPROCESSOR, path / PREPROCESSOR):
        if values := json_of(file):
            return values, str(file)
    return {}, str(path / PREPROCESSOR)


class OwnSounds(NamedTuple):
    """Sounds for another tower than Whisper's. extractors: classes that a folder's feature
    extractor may have; with any other one, or none, sounds aren't served.  read: how they are
    prepared."""

    tower: type[SoundTowerSpec]
    extractors: tuple[str, ...]
    read: Callable[[dict[str, Any], str, AudioSpec, MediaTokens], KindFacts]
    projector: type | None = None
    """None: any; of several that fit, the first of OWN_SOUNDS counts."""

    def are_of(self, audio: AudioSpec) -> bool:
        """Whether a model has such a tower."""
        alike = self.projector is None or isinstance(audio.projector, self.projector)
        return isinstance(audio.tower, self.tower) and alike


OWN_SOUNDS = (
    OwnSounds(ConformerSpec, (GEMMA3N,), gemma3n_sounds, EmbedderProjector),
    OwnSounds(ConformerSpec, (GEMMA4,), gemma4_sounds),
    OwnSounds(WaveformSpec, (GEMMA4_UNIFIED,), gemma4_unified_sounds),
    OwnSounds(BiasedConformerSpec, PHI4, phi4_sounds),
    OwnSounds(BlockConformerSpec, (GRANITE,), granite_sounds),
)
