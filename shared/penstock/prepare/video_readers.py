"""What a hub folder says about the videos that its model takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.formats.fields import Fields
from penstock.forms.canvas import CanvasImages
from penstock.forms.fixed import FixedFrames
from penstock.forms.overlapping import MarkedFrames
from penstock.forms.patches import VideoFrames
from penstock.forms.pooled import PooledFrames, PooledImages
from penstock.forms.registry import VideoPreparation
from penstock.forms.sliced import SlicedFrames, SlicedImages
from penstock.forms.video import FrameSampling, GroupTexts
from penstock.model.media_facts import KindFacts
from penstock.prepare import minicpm_readers, molmo_readers, patch_readers, picture_readers
from penstock.prepare.image_processor import pixels_of
from penstock.prepare.media_tokens import MediaTokens
from penstock.prepare.video_processor import (
    MAX_FRAMES,
    USUAL_FRAMES,
    VideoSettings,
    check_all_read,
    sampling_of,
)

KEYS = ("video_token_id", "video_token_index")
"""What config.json calls the token that stands for a video."""
INTERNVL_TOKEN = "<video>"
MOLMO2_TOKEN = "<|video|>"
"""config.json names neither."""
MOST_FRAMES = 128
"""Most frames of MiniCPM-V's videos, where a file doesn't say."""
MAX_SECONDS = 1_000_000
GLM_BEGIN, GLM_END = "<|begin_of_image|>", "<|end_of_image|>"


def read_video(
    values: dict[str, Any], where: str, config: Fields, tokens: MediaTokens
) -> KindFacts | None:
    """None for a model that takes no videos, and where no token stands for one. values, where: of
    the folder's file.  config: config.json.  Raises UnsupportedModel."""
    names = config.listed("architectures", str)
    family = next((FAMILIES[name] for name in names if name in FAMILIES), None)
    if family is None or not _has_token(family, tokens):
        return None
    if family.read is molmo2 and "video_processor_type" not in values:
        return None  # the file is about pictures
    settings = VideoSettings(values, where, family.processor)
    found = family.read(settings, config, tokens)
    check_all_read(settings)
    return found


def _has_token(family: VideoFamily, tokens: MediaTokens) -> bool:
    if family.read in OWN_TOKENS:
        return tokens.knows(OWN_TOKENS[family.read])
    return any(map(tokens.has, KEYS))


def _facts(video: VideoPreparation, tokens: MediaTokens) -> KindFacts:
    token, token_id = tokens.named(*KEYS)
    return KindFacts(preparation=video, placeholder=token, token=token, token_id=token_id)


def qwen2_vl(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Qwen2-VL's: one frame's rows follow another's."""
    return _facts(_one_by_one(settings, config), tokens)


def _one_by_one(settings: VideoSettings, config: Fields) -> VideoFrames:
    video = _in_patches(settings, config, of_all=False)
    return _with(video, sampling=sampling_of(settings))


def qwen2_5_vl(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Qwen2.5-VL's: positions are as far apart as times."""
    video = _one_by_one(settings, config)
    vision = config.section("vision_config")
    rate = vision.number("tokens_per_second", 4)
    if not 0 <= rate <= 1000:
        raise vision.wrong("tokens_per_second", "0 to 1000")
    return _facts(_with(video, positions_per_second=rate), tokens)


def qwen3_vl(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Qwen3-VL's: each group of frames stands after its time as text."""
    video = _in_patches(settings, config, of_all=True)
    begin, _ = tokens.named("vision_start_token_id")
    end, _ = tokens.named("vision_end_token_id")
    texts = GroupTexts(begin=begin, end=end, stamp="tagged")
    found = _facts(_with(video, sampling=sampling_of(settings, "ends"), texts=texts), tokens)
    # Each group has its own tokens around it; those of the template stood around all of them.
    return msgspec.structs.replace(found, placeholder=f"{begin}{found.token}{end}")


def glm4v(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """GLM-4.1V's and its successors': the time of each group of frames stands behind it; its rows
    have the token of pictures."""
    later = settings.kind == "Glm46VVideoProcessor"
    video = _in_patches(settings, config, of_all=True)
    settings.ignore("num_frames", "min_frames", "max_frames")
    fps, longest = settings.number("fps", 2.0), settings.number("max_duration", 300.0)
    if not (0 < fps <= 1000 and 0 < longest <= MAX_SECONDS):
        raise settings.wrong("fps", f"above 0, to 1000, with max_duration to {MAX_SECONDS}")
    sampling = FrameSampling(
        num_frames=0,
        fps=0.0 if later else fps,
        max_frames=MAX_FRAMES,
        rule="glm46v" if later else "glm4v",
        longest=longest,
    )
    if not settings.flag("do_sample_frames", True):
        sampling = FrameSampling(num_frames=USUAL_FRAMES)
    for text in (GLM_BEGIN, GLM_END):
        tokens.check(text)
    texts = GroupTexts(begin=GLM_BEGIN, end=GLM_END, stamp="tenths" if later else "whole")
    found = _facts(_with(video, sampling=sampling, texts=texts), tokens)
    return msgspec.structs.replace(found, shown_id=tokens.named("image_token_id")[1])


def minimax_m3(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """MiniMax M3's: each group of frames stands after its time. Which frames are shown is the
    makers' own rule, by their code in SGLang: their video processor shows all that it is given, and
    total_pixels bounds nothing there."""
    vision = config.section("vision_config")
    merging = vision.section("img_token_compression_config")
    settings.ignore("size", "total_pixels", "min_frames", "num_frames", "do_sample_frames")
    fps, most = settings.number("fps", 1.0), settings.integer("max_frames", 768)
    if not (0 < fps <= 1000 and 1 <= most <= MAX_FRAMES):
        raise settings.wrong("fps", f"above 0, to 1000, with max_frames to {MAX_FRAMES}")
    patch, merge = settings.integer("patch_size", 14), settings.integer("merge_size", 2)
    for text in (patch_readers.MINIMAX_BEGIN, patch_readers.MINIMAX_END):
        tokens.check(text)
    video = VideoFrames(
        pixels=pixels_of(settings),
        min_pixels=settings.integer("min_pixels"),
        max_pixels=settings.integer("max_pixels"),
        patch=patch,
        merge=merge,
        group=settings.integer("temporal_patch_size", 2),
        sampling=FrameSampling(num_frames=0, fps=fps, max_frames=most, rule="apart"),
        texts=GroupTexts(
            begin=patch_readers.MINIMAX_BEGIN,
            end=patch_readers.MINIMAX_END,
            stamp="bracketed",
        ),
    )
    _check(video, settings, vision.completed(**merging.values))
    return _facts(video, tokens)


def internvl(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """InternVL's: each frame is a picture of one tile, with its token."""
    picture = picture_readers.internvl(settings, config, tokens)
    spread: Literal["middles", "even"] = (
        "middles" if settings.flag("initial_shift", True) else "even"
    )
    return of_tiles(picture, *tokens.called(INTERNVL_TOKEN), sampling_of(settings, spread))


def of_tiles(picture: KindFacts, token: str, token_id: int, sampling: FrameSampling) -> KindFacts:
    """Videos whose frames are InternVL's pictures of one tile. token: stands for a video."""
    tile = picture.preparation
    if not isinstance(tile, CanvasImages):
        raise TypeError(f"InternVL's pictures are {type(tile).__name__}")
    video = FixedFrames(
        pixels=tile.pixels,
        height=tile.tile,
        width=tile.tile,
        rows=tile.rows,
        sampling=sampling,
        texts=GroupTexts(begin=picture.before, end=picture.behind, between="\n", stamp="frame"),
    )
    return KindFacts(
        preparation=video,
        placeholder=token,
        token=token,
        token_id=token_id,
        shown_id=picture.token_id,
    )


def gemma4(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Gemma 4's: each frame is a picture, which stands after its time."""
    picture = patch_readers.gemma4(settings, config, tokens)
    return of_pooled(picture, *tokens.named(*KEYS), sampling_of(settings))


def of_pooled(
    picture: KindFacts, token: str, token_id: int, sampling: FrameSampling, most: int = 0
) -> KindFacts:
    """Videos whose frames are Gemma 4's pictures. token: stands for a video.  most: embeddings of
    a frame; 0: as many as of a picture."""
    frame = picture.preparation
    if not isinstance(frame, PooledImages):
        raise TypeError(f"Gemma 4's pictures are {type(frame).__name__}")
    video = PooledFrames(
        pixels=frame.pixels,
        patch=frame.patch,
        merge=frame.merge,
        most=most or frame.most,
        texts=GroupTexts(begin=picture.before, end=picture.behind, between=" ", stamp="clock"),
        sampling=sampling,
    )
    return KindFacts(preparation=video, placeholder=token, token=token, token_id=token_id)


def minicpmv4_6(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """MiniCPM-V's: each frame is a picture with slices."""
    picture = minicpm_readers.minicpmv4_6(settings, config, tokens)
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
    return KindFacts(
        preparation=SlicedFrames(image=frame, sampling=sampling),
        placeholder=token,
        token=token,
        token_id=token_id,
        numbered=picture.numbered,
    )


def onevision(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """LLaVA-OneVision's, for a tower whose pictures all have one size."""
    vision = config.section("vision_config")
    height, width = settings.side("size")
    side, patch = vision.integer("image_size", 384), vision.integer("patch_size", 14)
    if (height, width) != (side, side) or not 1 <= patch <= side:
        raise settings.wrong("size", f"what the vision tower has ({side} x {side})")
    video = FixedFrames(
        pixels=pixels_of(settings),
        height=height,
        width=width,
        rows=(-(-(side // patch) // 2)) ** 2,
        sampling=sampling_of(settings),
    )
    return _facts(video, tokens)


def molmo2(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Molmo 2's: each frame is a square, which stands after its time; its rows have pictures'
    token."""
    image = molmo_readers.molmo2_frame(settings, config, tokens)
    most, fps = settings.integer("num_frames"), settings.number("max_fps")
    hub.only(settings, frame_sample_mode="uniform_last_frame")
    settings.ignore("sampling_fps")  # of another mode
    if not (1 <= most <= MAX_FRAMES and 0 < fps <= 1000):
        raise settings.wrong("num_frames", f"1 to {MAX_FRAMES}, with max_fps above 0, to 1000")
    sampling = FrameSampling(num_frames=most, fps=fps, max_frames=most, rule="molmo2")
    if not settings.flag("do_sample_frames", True):
        sampling = FrameSampling(num_frames=USUAL_FRAMES)
    video = MarkedFrames(
        image=image, texts=GroupTexts(between=" ", stamp="plain"), sampling=sampling
    )
    token, token_id = tokens.called(MOLMO2_TOKEN)
    return KindFacts(
        preparation=video,
        placeholder=token,
        token=token,
        token_id=token_id,
        joined=True,
        shown_id=tokens.named("image_patch_id")[1],
    )


def _in_patches(settings: VideoSettings, config: Fields, *, of_all: bool) -> VideoFrames:
    """of_all: as VideoFrames has it."""
    vision, size = config.section("vision_config"), settings.section("size")
    patch, merge = settings.integer("patch_size", 14), settings.integer("merge_size", 2)
    video = VideoFrames(
        pixels=pixels_of(settings),
        min_pixels=settings.integer("min_pixels", size.integer("shortest_edge")),
        max_pixels=settings.integer("max_pixels", size.integer("longest_edge")),
        patch=patch,
        merge=merge,
        group=settings.integer("temporal_patch_size", 2),
        all_pixels=_all_pixels(settings, patch * merge, of_all=of_all),
        of_all=of_all,
    )
    _check(video, settings, vision)
    return video


def _all_pixels(settings: VideoSettings, factor: int, *, of_all: bool) -> int:
    """Most pixels of a frame, where the other bounds are of all frames together; else of all; 0: no
    such bound."""
    tokens = settings.integer("max_video_tokens", 128_000)
    if not settings.flag("cap_pixels_per_frame", False):
        return 0
    if of_all:
        return tokens * factor * factor
    return int(tokens * factor * factor * 0.9) * settings.integer("temporal_patch_size", 2)


def _check(video: VideoFrames, settings: VideoSettings, vision: Fields) -> None:
    stated = (
        ("patch_size", video.patch, vision.optional_integer("patch_size")),
        ("merge_size", video.merge, vision.optional_integer("spatial_merge_size")),
        ("temporal_patch_size", video.group, vision.optional_integer("temporal_patch_size")),
    )
    for key, ours, tower in stated:
        if not 1 <= ours <= 1024 or tower not in (None, ours):
            raise settings.wrong(key, f"what the vision tower has ({tower})")
    if not 1 <= video.min_pixels <= video.max_pixels <= 1 << 28:
        raise UnsupportedModel(
            f"{settings.where}: frames are to have {video.min_pixels} to {video.max_pixels} "
            f"pixels; 1 to {1 << 28}, ascending, are allowed"
        )


def _with(video: VideoFrames, **changes: Any) -> VideoFrames:
    return msgspec.structs.replace(video, **changes)


Reader = Callable[[VideoSettings, Fields, MediaTokens], KindFacts]


class VideoFamily(NamedTuple):
    """processor: the class where a folder names none.  read: reads how videos are prepared."""

    processor: str
    read: Reader


OWN_TOKENS: dict[Reader, str] = {internvl: INTERNVL_TOKEN, molmo2: MOLMO2_TOKEN}
"""The token that stands for a video, where config.json doesn't name it."""
QWEN3 = VideoFamily("Qwen3VLVideoProcessor", qwen3_vl)
GLM = VideoFamily("Glm4vVideoProcessor", glm4v)
MINIMAX = VideoFamily("MiniMaxM3VLVideoProcessor", minimax_m3)
FAMILIES: dict[str, VideoFamily] = {
    "Exaone4_5_ForConditionalGeneration": VideoFamily("Qwen2VLVideoProcessor", qwen2_vl),
    "Gemma4ForConditionalGeneration": VideoFamily("Gemma4VideoProcessor", gemma4),
    "Gemma4UnifiedForConditionalGeneration": VideoFamily("Gemma4UnifiedVideoProcessor", gemma4),
    "Glm4vForConditionalGeneration": GLM,
    "Glm4vMoeForConditionalGeneration": GLM,
    "Glm46VForConditionalGeneration": VideoFamily("Glm46VVideoProcessor", glm4v),
    "InternVLForConditionalGeneration": VideoFamily("InternVLVideoProcessor", internvl),
    "LlavaOnevisionForConditionalGeneration": VideoFamily(
        "LlavaOnevisionVideoProcessor", onevision
    ),
    "Molmo2ForConditionalGeneration": VideoFamily("Molmo2VideoProcessor", molmo2),
    "MiniCPMV4_6ForConditionalGeneration": VideoFamily("MiniCPMV4_6VideoProcessor", minicpmv4_6),
    "MiniMaxM3SparseForConditionalGeneration": MINIMAX,
    "MiniMaxM3VLForConditionalGeneration": MINIMAX,
    "Qwen2VLForConditionalGeneration": VideoFamily("Qwen2VLVideoProcessor", qwen2_vl),
    "Qwen2_5_VLForConditionalGeneration": VideoFamily("Qwen2VLVideoProcessor", qwen2_5_vl),
    "Qwen3VLForConditionalGeneration": QWEN3,
    "Qwen3VLMoeForConditionalGeneration": QWEN3,
    "Qwen3_5ForConditionalGeneration": QWEN3,
    "Qwen3_5MoeForConditionalGeneration": QWEN3,
}
"""Families of models that take videos, by config.json's architecture."""
