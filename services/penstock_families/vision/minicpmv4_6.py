"""MiniCPM-V 4.6: SigLIP's tower for pictures of any form, which merges each square of patches into
one vector after one of its first layers, two products over squares of these, and Qwen3.5's decoder
with one-dimensional positions.

Source: OpenBMB, "MiniCPM-V 4.6", 2026.
"""

from __future__ import annotations

import msgspec

from penstock.families import hub_reading as hub
from penstock.families.media_tokens import MediaTokens
from penstock.families.qwen3_next import QWEN3_5
from penstock.families.tower_names import CLIP, IN_CLIP, TWO, TowerNames, tower, under
from penstock.families.vision.image_processor import ImageSettings
from penstock.families.vision.reading import (
    MAX_WIDTH,
    TextHalf,
    Videos,
    VisionFamily,
    patches_in_row,
    siglip_tower,
)
from penstock.families.vision.video_processor import MAX_FRAMES, USUAL_FRAMES, VideoSettings
from penstock.families.vision.videos import KEYS
from penstock.formats.fields import Fields
from penstock.forms.sliced import SlicedFrames, SlicedImages
from penstock.forms.video import FrameSampling
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import SquareMLPProjector
from penstock.model.tower_spec import LearnedPositions, MergingSpec, TowerSpec, VisionSpec
from penstock_families.vision.minicpmv import numbered, sliced

SIDE = 2
"""Patches in a row of a square that becomes one, in the tower and after it."""
PROJECTOR_NORM = NormSpec(kind="layer", eps=1e-6, bias=True)
MODES = ("16x", "4x")


def merging(tower: TowerSpec, behind: int) -> MergingSpec:
    """behind: number of the layer before it."""
    return MergingSpec(behind=behind, side=SIDE, inner=SIDE**2 * tower.intermediate_size)


def positions(side: int) -> LearnedPositions:
    return LearnedPositions(side=side, fractional=True, of_parts=True)


def projector(tower: TowerSpec) -> SquareMLPProjector:
    inner = SIDE**2 * tower.hidden_size
    return SquareMLPProjector(factor=SIDE, norm=PROJECTOR_NORM, inner=inner)


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    hub.only(fields, drop_vision_last_layer=False, merger_times=1)
    for where, key in ((fields, "merge_kernel_size"), (section, "window_kernel_size")):
        if key in where and where.listed(key, int) != [SIDE, SIDE]:
            raise where.wrong(key, f"[{SIDE}, {SIDE}]")
    mode = fields.text("downsample_mode", "16x")
    if mode not in MODES:
        raise fields.wrong("downsample_mode", " or ".join(MODES))
    behind = fields.integer("insert_layer_id", 6)
    section.ignore("insert_layer_id")  # it is the whole's that counts
    tower, image = siglip_tower(section)
    if tower.intermediate_size > MAX_WIDTH // SIDE**2:
        raise section.wrong("intermediate_size", f"at most {MAX_WIDTH // SIDE**2}")
    if mode == "16x" and not 0 <= behind < tower.num_layers:
        raise fields.wrong("insert_layer_id", f"0 to {tower.num_layers - 1}, a layer of the tower")
    found = msgspec.structs.replace(
        tower,
        positions=positions(patches_in_row(section, image, tower.patch)),
        merging=merging(tower, behind) if mode == "16x" else None,
    )
    return VisionSpec(tower=found, projector=projector(tower))


MOST_FRAMES = 128
"""Most frames of MiniCPM-V's videos, where a file doesn't say."""


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    mode = config.text("downsample_mode", "16x")
    if settings.text("downsample_mode", "16x") != mode:
        raise settings.wrong("downsample_mode", f"what config.json says ({mode})")
    image = sliced(settings, config, merge=2 if mode == "4x" else 4)
    return KindFacts.marked(
        image, tokens.named("image_token_id"), numbered=numbered(settings, tokens, image)
    )


def videos(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """MiniCPM-V's: each frame is a picture with slices."""
    picture = pictures(settings, config, tokens)
    most = settings.integer("max_num_frames", MOST_FRAMES)
    if not 1 <= most <= MAX_FRAMES:
        raise settings.wrong("max_num_frames", f"1 to {MAX_FRAMES}")
    if settings.integer("stack_frames", 1) != 1:
        raise settings.wrong("stack_frames", "1")
    settings.ignore("num_frames", "fps")
    sampling = each_second(most)
    if not settings.flag("do_sample_frames", True):
        sampling = FrameSampling(num_frames=USUAL_FRAMES)
    return of_sliced(picture, *tokens.named(*KEYS), sampling)


def each_second(most: int) -> FrameSampling:
    """MiniCPM-V's rule: a frame for each second, up to so many."""
    return FrameSampling(num_frames=0, max_frames=most, rule="minicpmv")


def of_sliced(picture: KindFacts, token: str, token_id: int, sampling: FrameSampling) -> KindFacts:
    """Videos whose frames are MiniCPM-V's pictures. token: stands for a video."""
    frame = picture.preparation
    if not isinstance(frame, SlicedImages):
        raise TypeError(f"MiniCPM-V's pictures are {type(frame).__name__}")
    video = SlicedFrames(image=frame, sampling=sampling)
    return KindFacts.marked(video, (token, token_id), numbered=picture.numbered)


_MERGING: TowerNames = {
    **IN_CLIP,
    "pre_norm": "norm2",
    "linear_1": "up_proj",
    "linear_2": "down_proj",
}
_PROJECTOR: TowerNames = {f"mlp.0.{theirs}": ours for theirs, ours in TWO.items()}
NAMES = tower({**CLIP, **under("vit_merger", _MERGING, "merging")}) | under(
    "merger", _PROJECTOR | {"mlp.0.pre_norm": "norm"}, "projector"
)

MINICPMV4_6 = VisionFamily(
    "minicpmv4_6",
    ("MiniCPMV4_6ForConditionalGeneration",),
    "MiniCPM-V 4.6",
    {"qwen3_5_text": TextHalf(QWEN3_5)},
    _read,
    usual="qwen3_5_text",
    harmless=frozenset({"image_size", "patch_size"}),
    pictures=pictures,
    videos=Videos(videos, "MiniCPMV4_6VideoProcessor"),
    hub_names=NAMES,
)
