"""The vision towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen2.5-Omni and Qwen3-Omni in mmproj
files."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.tower_names import TowerNames, under
from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD, HALF
from penstock.families.vision.qwen_vl import EPS, MAX_MERGE, MAX_WINDOW
from penstock.families.vision.reading import MAX_WIDTH, bounded
from penstock.forms.patches import PatchImages
from penstock.forms.pixels import Colour
from penstock.model.projector_spec import MergerProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec, WindowSpec
from penstock.prepare.mmproj.common_names import OF_FRAMES, TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock.prepare.mmproj.videos import as_of_release

FRAMES = 2
"""Frames of a patch: the converter writes a kernel for each, and knows no other number."""
MAX_PICTURE = 1 << 28
PICTURE, VIDEO = "<|image_pad|>", "<|video_pad|>"
BEGIN, END = "<|vision_start|>", "<|vision_end|>"


class Release(msgspec.Struct, frozen=True):
    """What the settings of a family's releases say, and the file doesn't. pixels, frame_pixels: the
    fewest and the most, of a picture and of a video's frames (Qwen3-VL: of all frames).  seconds:
    how far apart in time positions of a second are.  picture: the token that stands for one."""

    hub_class: str
    pixels: tuple[int, int]
    frame_pixels: tuple[int, int]
    mean: Colour = CLIP_MEAN
    std: Colour = CLIP_STD
    seconds: int | None = None
    picture: str = PICTURE


QWEN2 = Release("Qwen2VLForConditionalGeneration", (3136, 12_845_056), (3136, 12_845_056))
QWEN2_5 = msgspec.structs.replace(QWEN2, hub_class="Qwen2_5_VLForConditionalGeneration", seconds=2)
QWEN3 = Release(
    "Qwen3VLForConditionalGeneration", (65_536, 16_777_216), (4096, 25_165_824), HALF, HALF
)

OMNI = msgspec.structs.replace(
    QWEN2, hub_class="Qwen3OmniMoeForConditionalGeneration", mean=HALF, std=HALF
)
OMNI_2_5 = msgspec.structs.replace(QWEN2, hub_class="Qwen2_5OmniModel", picture="<|IMAGE|>")


def qwen2_vl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """The file's feed_forward_length is the decoder's hidden size, or 0."""
    rows, columns = found.shape("v.blk.0.ffn_up.weight", 2)
    inner = rows if columns == found.hidden_size() else columns
    if not 1 <= inner <= MAX_WIDTH:
        raise UnsupportedModel(f"{found.file.path}: v.blk.0.ffn_up has {inner} outputs")
    tower = patch_tower(found, "layer", activation=found.activation("gelu"), inner=inner)
    return _seen(found, tokens, tower, QWEN2)


def qwen2_5_vl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    return _seen(found, tokens, _windowed(found), QWEN2_5)


def qwen2_5_omni(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    return _seen(found, tokens, _windowed(found), OMNI_2_5)


def _windowed(found: MmprojFile) -> TowerSpec:
    tower = patch_tower(found, "rms", activation=found.activation("gelu"), gated=True)
    every = bounded(found.keys, "n_wa_pattern", tower.num_layers)
    pixels = bounded(found.keys, "window_size", MAX_WINDOW, 112)
    merge = merge_of(found)
    squares = pixels // merge // tower.patch
    if squares < 1:
        raise found.keys.wrong("window_size", f"{merge * tower.patch} pixels at least")
    windows = WindowSpec(
        side=squares * merge, whole=tuple(range(every - 1, tower.num_layers, every))
    )
    return msgspec.structs.replace(tower, windows=windows)


def qwen3_vl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    places, _ = found.shape("v.position_embd.weight", 2)
    side = math.isqrt(places)
    if side * side != places:
        raise UnsupportedModel(
            f"{found.file.path}: v.position_embd has {places} rows; a square number is needed"
        )
    tower = patch_tower(
        found,
        "layer",
        activation=found.activation("gelu_tanh"),
        patch_bias=True,
        positions=RotaryPositions(table=side),
    )
    hears = found.file.metadata.get("clip.has_audio_encoder") is True
    vision, kinds = _seen(found, tokens, tower, OMNI if hears else QWEN3)
    return msgspec.structs.replace(
        vision, deepstack_layers=_deepstack_layers(found, tower.num_layers)
    ), kinds


def _deepstack_layers(found: MmprojFile, layers: int) -> tuple[int, ...]:
    key = "is_deepstack_layers"
    flags = found.keys.listed(key, bool) if key in found.keys else [False] * layers
    numbers = tuple(layer for layer, flag in enumerate(flags) if flag)
    if len(flags) != layers or len(numbers) > found.text.num_layers:
        raise found.keys.wrong(
            key, f"a flag for each of {layers} layers, at most {found.text.num_layers} of them true"
        )
    return numbers


def patch_tower(
    found: MmprojFile,
    norm: Literal["layer", "rms"],
    eps: float | None = EPS,
    frames: int = FRAMES,
    **parts: Any,
) -> TowerSpec:
    """The tower of pictures of any form, before a decoder whose tokens have positions of three
    numbers. eps: of its norms; None: as the file says.  frames: of a patch."""
    if not all(rope.sections for rope in found.text.ropes):
        raise UnsupportedModel(
            f"{found.file.path} belongs to a decoder whose tokens have positions of three numbers; "
            "this one's don't (rope.dimension_sections)"
        )
    parts = {"positions": RotaryPositions()} | parts
    tower: TowerSpec = found.tower(norm, eps=eps, frames=frames, **parts)
    if tower.head_dim % 4:
        raise found.keys.wrong("attention.head_count", "heads of a multiple of 4 numbers")
    return tower


def merge_of(found: MmprojFile) -> int:
    """Patches, each way, of a square that becomes a row."""
    return bounded(found.keys, "spatial_merge_size", MAX_MERGE, 2)


def pixel_bounds(found: MmprojFile, usual: tuple[int, int]) -> tuple[int, int]:
    """The fewest and the most pixels of a picture; usual: where the file doesn't say."""
    least = bounded(found.keys, "image_min_pixels", MAX_PICTURE, usual[0])
    most = bounded(found.keys, "image_max_pixels", MAX_PICTURE, usual[1])
    if least > most:
        raise found.keys.wrong("image_min_pixels", f"at most {most}")
    return least, most


def _seen(
    found: MmprojFile, tokens: MmprojTokens, tower: TowerSpec, release: Release
) -> tuple[VisionSpec, Kinds]:
    merge = merge_of(found)
    vision = VisionSpec(tower=tower, projector=MergerProjector(side=merge, norm=tower.norm))
    pixels = found.pixels(3, release.mean, release.std)
    least, most = pixel_bounds(found, release.pixels)
    preparation = PatchImages(
        pixels=pixels,
        min_pixels=least,
        max_pixels=most,
        patch=tower.patch,
        merge=merge,
        frames=FRAMES,
    )
    kinds = of_pictures(preparation, tokens.id_of(release.picture))
    if release not in (OMNI, OMNI_2_5) and tokens.has(VIDEO, BEGIN, END):
        kinds |= _videos(found, tokens, preparation, release)
    return vision, kinds


def _videos(
    found: MmprojFile, tokens: MmprojTokens, picture: PatchImages, release: Release
) -> Kinds:
    named = {"video_token_id": VIDEO, "vision_start_token_id": BEGIN, "vision_end_token_id": END}
    sizes = {} if release.seconds is None else {"tokens_per_second": release.seconds}
    return as_of_release(
        found, tokens, picture, release.hub_class, named, release.frame_pixels, sizes
    )


NAMES: TowerNames = {
    **TOWER,
    **OF_FRAMES,
    "v.post_ln": "projector.norm",  # that of the merger
    **under("v.deepstack.*", {"fc1": "1", "fc2": "2"}, "projector.deepstack.*"),
    "mm.0": "projector.1",
    "mm.2": "projector.2",
}
QWEN2_VL = MmprojKind("qwen2vl_merger", "Qwen2-VL", ("qwen2",), qwen2_vl, NAMES)
QWEN2_5_VL = MmprojKind("qwen2.5vl_merger", "Qwen2.5-VL", ("qwen2",), qwen2_5_vl, NAMES)
QWEN2_5_OMNI = MmprojKind(
    "qwen2.5o", "Qwen2.5-Omni", ("qwen2",), qwen2_5_omni, NAMES, ears="qwen2.5o"
)
QWEN3_VL = MmprojKind(
    "qwen3vl_merger",
    "Qwen3-VL, Qwen3.5 or Qwen3-Omni",
    ("qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe"),
    qwen3_vl,
    NAMES,
    ears="qwen3a",
)
