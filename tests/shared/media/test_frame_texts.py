"""Videos of Gemma 4, GLM, InternVL, MiniCPM-V and MiniMax M3 in prompts: which frames are shown,
the text around them and the token ids are those of transformers' processors."""

from __future__ import annotations
import __future__

import ast
import json
import math
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.glm4v.video_processing_glm4v import smart_resize
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.video_utils import VideoMetadata

from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedFrames
from penstock.forms.patches import VideoFrames
from penstock.forms.pooled import PooledFrames
from penstock.forms.registry import VideoPreparation
from penstock.forms.sliced import SlicedFrames
from penstock.forms.video import FrameSampling, VideoShape
from penstock.media.changes import facts_with, with_frames
from penstock.media.frame_settings import FrameSettings
from penstock.media.layout import ItemLayout, layout
from penstock.media.placeholders import with_rows, with_runs
from penstock.media.sampling import sampled
from penstock.media.video import prepare_frames, raw_frames
from penstock.model.media_facts import MediaFacts
from penstock.prepare.media import read_media
from penstock.text.tokenizer import Tokenizer
from tests.shared.media.media_tokenizer import OF_VIDEOS, tokenizer
from tests.shared.media.picture_families import FAMILIES
from tests.shared.media.picture_family import Family, write_folder
from tests.shared.media.pictures import picture
from tests.shared.media.processors import without_videos
from tests.shared.media.videos import BOUNDS, noise
from tests.shared.media.without_torchvision import class_of

GLM4V = FAMILIES["glm4v"]._replace(
    processor=lambda fast: without_videos(Glm4vProcessor)(
        Glm46VImageProcessorPil(size={"shortest_edge": 2 * 56 * 56, "longest_edge": 2 * 112 * 112}),
        fast,
    )
)
WATCHING: dict[str, Family] = {
    "gemma4": FAMILIES["gemma4"],
    "gemma4_unified": FAMILIES["gemma4_unified"],
    "glm4v": GLM4V,
    "glm46v": FAMILIES["glm4v"]._replace(architecture="Glm46VForConditionalGeneration"),
    "internvl": FAMILIES["internvl"],
    "minicpmv4_6": FAMILIES["minicpmv4_6"],
    "minimax_m3": FAMILIES["minimax_m3"],
}
MARKS = {
    "gemma4": "<|video|>",
    "gemma4_unified": "<|video|>",
    "glm4v": "<|begin_of_video|><|video|><|end_of_video|>",
    "glm46v": "<|begin_of_video|><|video|><|end_of_video|>",
    "internvl": "<video>",
    "minicpmv4_6": "<|video_pad|>",
    "minimax_m3": "]<]video[>[",
}
"""What a chat template writes for a video."""
NUMBERS, RATE, TOTAL = (0, 13, 25, 37, 49, 61, 1999), Fraction(30000, 1001), 2000


def tokens_of(name: str) -> Any:
    """The family's tokenizer."""
    return tokenizer(*WATCHING[name].tokens, *OF_VIDEOS)


def folder_of(folder: Path, name: str, **settings: Any) -> tuple[Any, MediaFacts]:
    """transformers' processor and what the folder says. settings: of
    video_preprocessor_config.json; without some, there is none."""
    processor = write_folder(folder, WATCHING[name], *OF_VIDEOS)
    values = json.loads((folder / "config.json").read_text())
    ids = tokens_of(name).get_vocab(with_added_tokens=True)
    if name == "minimax_m3":
        values["video_token_index"] = ids[MARKS[name]]
    elif name != "internvl":
        values["video_token_id"] = ids["<|video_pad|>" if "minicpm" in name else "<|video|>"]
    if settings:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(settings))
    content = (folder / "tokenizer.json").read_bytes()
    found = read_media(folder, Fields(values, "config.json"), content)
    assert found is not None
    return processor, found


def video_of(found: MediaFacts) -> VideoPreparation:
    preparation = found.kinds["video"].preparation
    assert isinstance(preparation, VideoPreparation)
    return preparation


def text_of(processor: Any, name: str, video: VideoPreparation, shape: VideoShape) -> str:
    """What transformers' processor writes for the video in place of its token."""
    said = VideoMetadata(TOTAL, fps=float(RATE), frames_indices=list(shape.numbers))
    own: dict[str, Any] = {"video_metadata": [said]}
    frames = np.zeros((shape.shown, shape.height, shape.width, 3), np.uint8)
    raw = frames.tobytes(), (shape.width, shape.height, 2, 1)
    made = video.inputs(prepare_frames(video, raw_frames(*raw), BOUNDS)[0])
    if name.startswith("gemma4"):
        _, _, height, width = made["pixel_values"].shape
        own["num_soft_tokens_per_video"] = [height * width // 8**2]
    elif "glm" in name or name == "minimax_m3":
        own["video_grid_thw"] = torch.from_numpy(made["grid_thw"]).long()[None]
        processor.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    elif name == "internvl":
        own["pixel_values_videos"] = made["pixel_values"][None]
    else:
        pictures = picture(shape.width, shape.height)
        one = processor.image_processor([pictures], return_tensors="np")
        own = {
            "target_sizes_videos": torch.from_numpy(one["target_sizes"]).repeat(shape.shown, 1),
            "grids_videos": torch.as_tensor(np.asarray(one["grids"])).repeat(shape.shown, 1),
            "num_frames_per_video": [shape.shown],
        }
    text: str = processor.replace_video_token(own, 0, video_token_divisor=16)
    return f"<image_id>0</image_id>{text}" if name == "minicpmv4_6" else text


@pytest.mark.parametrize("name", WATCHING)
@pytest.mark.parametrize("size", [(56, 84), (20, 33)])
def test_texts_and_ids_are_those_of_transformers(
    name: str, size: tuple[int, int], tmp_path: Path
) -> None:
    processor, facts = folder_of(tmp_path, name)
    video, shape = video_of(facts), VideoShape(*size, TOTAL, RATE, NUMBERS)
    one = layout(facts, "video", shape.flat())
    shown = layout(facts, "image", (40, 60))
    mark, own = MARKS[name], facts.kinds["video"]
    prompt = f"ab{mark}\nc{WATCHING[name].mark}"
    picture_text = processor(
        text=[WATCHING[name].mark], images=[picture(60, 40)], return_tensors="np"
    )["input_ids"][0].tolist()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens_of(name))
    inner = mark.replace(own.placeholder, text_of(processor, name, video, shape))
    true = [*fast.encode(f"ab{inner}\nc"), *picture_text]
    mine = Tokenizer.from_bytes(tokens_of(name).to_str().encode(), add_bos=False, bos_token_id=None)
    layouts: list[ItemLayout] = [one, shown]
    ids, spans = with_rows(mine.encode(with_runs(prompt, facts, layouts)), facts, layouts)
    assert ids == true
    token = own.token_id if own.shown_id is None else own.shown_id
    rows = [ids[at] for span in spans if not span.item for at in range(span.offset, span.end)]
    assert rows == [token] * one.rows


# ---- which frames


def rule_of(model: str, **own: Any) -> Callable[..., list[int]]:
    """`sample_frames` of a model's video processor: the module's own code, which asks for
    torchvision only elsewhere. own: settings."""
    package = "transformers" if model == "base" else f"transformers.models.{model}"
    found = find_spec(package)
    assert found is not None
    assert found.submodule_search_locations
    name = "video_processing_utils" if model == "base" else f"video_processing_{model}"
    path = Path(found.submodule_search_locations[0]) / f"{name}.py"
    (rule,) = (
        each
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.FunctionDef) and each.name == "sample_frames"
    )
    names: dict[str, Any] = {"np": np, "math": math, "torch": torch}
    flags = __future__.annotations.compiler_flag
    exec(compile(ast.Module([rule], []), str(path), "exec", flags, dont_inherit=True), names)

    def numbers(total: int, rate: float, **also: Any) -> list[int]:
        metadata = VideoMetadata(total, fps=rate, duration=total / rate)
        return [int(n) for n in names["sample_frames"](SimpleNamespace(**own), metadata, **also)]

    return numbers


LENGTHS = [
    (total, rate)
    for rate in (Fraction(1, 2), Fraction(3), Fraction(10), Fraction(30000, 1001), Fraction(60))
    for total in (1, 2, 3, 7, 50, 151, 900, 1801, 9001)
]


@pytest.mark.parametrize(
    ("name", "rule", "also"),
    [
        ("glm4v", rule_of("glm4v", fps=2, max_duration=300), {}),
        ("glm46v", rule_of("glm46v", fps=2, temporal_patch_size=2), {}),
        ("minicpmv4_6", rule_of("minicpmv4_6"), {"max_num_frames": 128, "stack_frames": 1}),
        ("gemma4", rule_of("base", num_frames=32, fps=None), {}),
        ("gemma4_unified", rule_of("base", num_frames=32, fps=None), {}),
        ("internvl", rule_of("internvl", initial_shift=True), {"num_frames": 32}),
    ],
)
def test_frames_are_those_of_transformers(
    name: str, rule: Callable[..., list[int]], also: dict[str, Any], tmp_path: Path
) -> None:
    _, facts = folder_of(tmp_path, name)
    video, compared = video_of(facts), 0
    for total, rate in LENGTHS:
        found = sampled(total, rate, video.sampling, video.group)
        assert 0 <= found[0] <= found[-1] < total
        assert list(found) == sorted(found)
        if not video.sampling.rule and total < 32:
            assert found == tuple(range(total))  # there it is an error
            continue
        true = rule(total, float(rate), **also)
        if not true:  # of a video of less than a sixth of a second GLM-4.6V's rule shows nothing
            assert set(found) == {0}
            continue
        assert list(found) == true[: len(found)], (total, rate)
        assert len(true) - len(found) in ((0,) if video.sampling.rule else (0, 1))
        compared += 1
    assert compared >= 15


@pytest.mark.parametrize("fps", [1, 0.5, 3, 29.97])
def test_frames_of_minimax_m3_lie_apart(fps: float, tmp_path: Path) -> None:
    """transformers shows all frames that it is given. Those of the makers' rule: a frame is shown
    if it is 1 / fps seconds behind the last one that is, more or less, and the last one is."""
    video = video_of(folder_of(tmp_path, "minimax_m3", fps=fps)[1])
    for total, rate in LENGTHS:
        shown, before = [], -math.inf
        for number in range(total):
            if number / rate - before >= 1 / fps - 1e-4:
                shown.append(number)
                before = number / rate
        shown += [total - 1] * (shown[-1] != total - 1)
        found = list(sampled(total, rate, video.sampling, 2))
        if len(shown) > 768:
            assert len(found) == 768
            assert set(found) <= set(shown)
            continue
        assert found == shown + shown[-1:] * (len(shown) % 2), (total, rate)


def test_the_operators_frames_count(tmp_path: Path) -> None:
    """A family's own rule yields to them; what it gives beyond --max-video-frames is left out."""
    _, facts = folder_of(tmp_path, "glm4v")
    bounded = video_of(with_frames(facts, FrameSettings(most=9)))
    found = sampled(1000, Fraction(10), bounded.sampling, 2)
    assert len(found) == 8
    assert (found[0], found[-1]) == (0, 995)
    stated = video_of(with_frames(facts, FrameSettings(most=64, num_frames=10)))
    assert stated.sampling == FrameSampling(num_frames=10, max_frames=64, longest=300.0)
    fewer = video_of(facts_with(facts, {}, {"num_frames": 6}, ("video",)))
    assert len(sampled(1000, Fraction(10), fewer.sampling, 2)) == 6
    slower = video_of(facts_with(facts, {}, {"fps": 0.5}, ("video",)))
    assert len(sampled(1000, Fraction(10), slower.sampling, 2)) == 50
    with pytest.raises(InvalidRequest, match="fps is 3; at most 2"):
        facts_with(facts, {}, {"fps": 3}, ("video",))


@pytest.mark.parametrize("size", [(480, 640), (1080, 1920), (17, 20), (56, 900), (20, 33)])
@pytest.mark.parametrize("shown", [2, 7, 64])
def test_frames_become_as_large_as_in_transformers(
    size: tuple[int, int], shown: int, tmp_path: Path
) -> None:
    (tmp_path / "glm").mkdir()
    glm = video_of(folder_of(tmp_path / "glm", "glm4v")[1])
    assert isinstance(glm, VideoFrames)
    true = smart_resize(
        shown, *size, factor=28, min_pixels=glm.min_pixels, max_pixels=glm.max_pixels
    )
    assert glm.frame_size(size, shown) == true
    gemma = video_of(folder_of(tmp_path, "gemma4")[1])
    assert isinstance(gemma, PooledFrames)
    true = get_aspect_ratio_preserving_size(*size, 4, gemma.most * 2**2, 2)
    assert gemma.frame_size(size, shown) == true
    (tmp_path / "m3").mkdir()
    minimax = video_of(folder_of(tmp_path / "m3", "minimax_m3")[1])
    rule = class_of("minimax_m3_vl", "smart_resize")
    assert minimax.frame_size(size, shown) == rule(*size, 28, 4 * 28 * 28, 768 * 28 * 28)


# ---- settings


def test_settings_of_folders(tmp_path: Path) -> None:
    found: dict[str, VideoPreparation] = {}
    stated: dict[str, dict[str, Any]] = {
        "gemma4": {"patch_size": 4, "pooling_kernel_size": 2, "num_frames": 8},
        "glm4v": {"fps": 1, "max_duration": 60, "do_sample_frames": True},
        "glm46v": {"video_processor_type": "Glm46VVideoProcessor", "fps": 2, "num_frames": 16},
        "internvl": {"size": {"height": 24, "width": 24}, "initial_shift": False},
        "minicpmv4_6": {"patch_size": 4, "max_num_frames": 12, "max_slice_nums": 1},
    }
    for name, settings in stated.items():
        (tmp_path / name).mkdir()
        found[name] = video_of(folder_of(tmp_path / name, name, **settings)[1])
    gemma, glm, later, intern, cpm = found.values()
    assert isinstance(gemma, PooledFrames)
    assert (gemma.most, gemma.square, gemma.sampling.num_frames) == (70, 8, 8)
    assert isinstance(glm, VideoFrames)
    assert isinstance(later, VideoFrames)
    assert (glm.min_pixels, glm.max_pixels, glm.of_all) == (112 * 112, 28 * 28 * 60_000, True)
    assert (glm.sampling.rule, glm.sampling.fps, glm.sampling.longest) == ("glm4v", 1.0, 60.0)
    assert (later.sampling.rule, later.sampling.fps) == ("glm46v", 0.0)
    assert isinstance(intern, FixedFrames)
    assert (intern.height, intern.rows, intern.sampling.spread) == (24, 4, "even")
    assert isinstance(cpm, SlicedFrames)
    assert (cpm.sampling.max_frames, cpm.image.most, cpm.image.scale) == (12, 1, 448)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("gemma4", {"max_soft_tokens": 71}),
        ("gemma4_unified", {"max_soft_tokens": 71}),
        ("gemma4_unified", {"patch_size": 4, "pooling_kernel_size": 3}),
        ("gemma4_unified", {"video_processor_type": "OtherVideoProcessor"}),
        ("minimax_m3", {"fps": 0}),
        ("minimax_m3", {"max_frames": 10**6}),
        ("minimax_m3", {"merge_size": 3}),
        ("minimax_m3", {"max_size": [756, 756]}),
        ("glm4v", {"fps": 0}),
        ("internvl", {"size": {"height": 30, "width": 30}}),
        ("minicpmv4_6", {"patch_size": 4, "stack_frames": 3}),
        ("minicpmv4_6", {"patch_size": 4, "max_num_frames": 0}),
        ("gemma4", {"patch_size": 4, "pooling_kernel_size": 2, "crop_tops": True}),
    ],
)
def test_what_can_not_be_followed_is_refused(
    name: str, wrong: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel):
        folder_of(tmp_path, name, **wrong)


def test_slices_count_as_pixels(tmp_path: Path) -> None:
    """All that a frame becomes is bounded, not only its whole."""
    _, facts = folder_of(tmp_path, "minicpmv4_6")
    video, frames = video_of(facts), noise(4, 90, 100)
    raw = frames.tobytes(), (100, 90, 2, 1)
    whole = prepare_frames(video, raw_frames(*raw), BOUNDS)[0]["frames"].size // 3
    for most, fits in ((whole, True), (whole - 1, False)):
        bounds = msgspec.structs.replace(BOUNDS, all_pixels=most)
        if fits:
            prepare_frames(video, raw_frames(*raw), bounds)
        else:
            with pytest.raises(ValueError, match="--max-video-pixels"):
                prepare_frames(video, raw_frames(*raw), bounds)
