"""A GGUF model with an mmproj file made of a release's own tensors answers as the release."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import torch

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.forms.patches import PatchImages, VideoFrames
from penstock.forms.registry import ImagePreparation
from penstock.forms.video import FrameSampling, GroupTexts
from penstock.forms.windowed import WindowedImages
from penstock.model.prepared_model import WeightFiles
from penstock.model.tower_spec import RotaryPositions, VisionSpec
from penstock.prepare.gguf_config import read_config
from penstock.prepare.mmproj.reading import read_mmproj
from tests.shared.media.media_tokenizer import MINIMAX, OF_VIDEOS, STEP, tokenizer
from tests.worker.vision.mmproj_writer import write_mmproj, write_text_half
from tests.worker.vision.newer_cases import ANYRES
from tests.worker.vision.pictures import picture
from tests.worker.vision.released_mmproj import write_released
from tests.worker.vision.test_mmproj import answers, known
from tests.worker.vision.vision_cases import CASES, both, opened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KIMI = PatchImages(
    pixels=known(3),
    min_pixels=64,
    max_pixels=16_384,
    patch=4,
    merge=2,
    frames=1,
    most_side=512,
)
M3 = PatchImages(pixels=known(3), min_pixels=3136, max_pixels=451_584, patch=4, merge=2)
NEXT = msgspec.structs.replace(ANYRES, pixels=known(3))
PREPARED: dict[str, tuple[str, ImagePreparation]] = {
    "step3vl": (
        "step-3.7-files",
        WindowedImages(
            pixels=known(2),
            whole=48,
            tile=144,
            longest=640,
            patch=4,
            whole_rows=9,
            tile_rows=81,
        ),
    ),
    "kimi-k25": ("kimi-k25", KIMI),
    "kimi-vl": ("kimi-vl", msgspec.structs.replace(KIMI, max_pixels=65_536)),
    "minimax-m3": ("minimax-m3", M3),
    "llava-next": ("llava-next", NEXT),
    "granite-vision": ("granite-vision", NEXT),
    "paddleocr-vl": (
        "paddleocr-vl",
        PatchImages(
            pixels=known(3),
            min_pixels=64,
            max_pixels=4096,
            patch=4,
            merge=2,
            frames=1,
            widened=True,
        ),
    ),
}
"""The tiny model that has the tower of each kind of file, and how its pictures are prepared."""
TOKENS = ("<|media_pad|>", "<|IMAGE_PLACEHOLDER|>", *MINIMAX, *STEP)


def vocabulary() -> bytes:
    return tokenizer(*TOKENS).to_str().encode()


def alike(spec: VisionSpec) -> VisionSpec:
    """Without what tells in which order a file has a head's pairs, and how much more it has than is
    read."""
    tower = msgspec.structs.replace(spec.tower, together=0, unread_layers=0)
    positions = tower.positions
    if not isinstance(positions, RotaryPositions):
        return msgspec.structs.replace(spec, tower=tower)
    order = dict.fromkeys(("by_turns", "columns_first", "adjacent", "by_axes"), False)
    plain = msgspec.structs.replace(positions, **order)
    return msgspec.structs.replace(spec, tower=msgspec.structs.replace(tower, positions=plain))


@pytest.mark.parametrize("kind", PREPARED)
def test_two_files_answer_as_the_checkpoint(kind: str, tmp_path: Path) -> None:
    case, preparation = PREPARED[kind]
    theirs, hub = both(case)
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_released(mmproj, kind, theirs, hub.files.files)
    config, media = read_mmproj(mmproj, read_config(GGUFFile(text)), vocabulary())
    assert media.kinds["image"].preparation == preparation
    assert config.vision is not None
    assert hub.config.vision is not None
    assert alike(config.vision) == alike(hub.config.vision)
    files = WeightFiles(format="gguf", files=(str(text),), dtype="F32", mmproj=str(mmproj))
    ours = opened(config, files)
    shown = picture(CASES[case].preparation, 2, 1).inputs
    with torch.inference_mode():
        found, expected = (one.tower.encode(one.tower.read(shown)) for one in (ours, hub))
    # Pairs in another order are summed in another one.
    close = 1e-5 if kind == "kimi-k25" else 0.0
    assert torch.allclose(found, expected, rtol=close, atol=close)
    assert answers(case, ours, tmp_path) == answers(case, hub, tmp_path)


def written(kind: str, folder: Path, key: str, value: Any) -> tuple[Path, Path]:
    """The two files; value: what the key of the mmproj file says, or a tensor of it; None: it lacks
    that."""
    case, _ = PREPARED[kind]
    theirs, hub = both(case)
    text, mmproj = folder / "text.gguf", folder / "mmproj.gguf"
    write_text_half(text, theirs)

    def change(tensors: dict[str, torch.Tensor], writer: Any) -> None:
        if key in tensors:
            tensors.pop(key)
            if value is not None:
                tensors[key] = value
        elif isinstance(value, list):
            writer.kv_data[0][key].value = value
        else:
            stored = gguf.GGUFValueType.get_type(value)
            writer.kv_data[0][key] = gguf.GGUFValue(value, stored)

    write_released(mmproj, kind, theirs, hub.files.files, change)
    return text, mmproj


REFUSED: dict[str, tuple[str, str, Any, str]] = {
    "a table that isn't square": (
        "kimi-k25",
        "v.position_embd.weight",
        torch.zeros(5, 4, 48),
        "v.position_embd.weight has 5 × 4 places",
    ),
    "no table": ("kimi-k25", "v.position_embd.weight", None, "lacks the tensor v.position_embd"),
    "a table of no square": (
        "kimi-vl",
        "v.position_embd.weight",
        torch.zeros(24, 48),
        "v.position_embd has 24 rows",
    ),
    "heads of six numbers": (
        "kimi-k25",
        "clip.vision.attention.head_count",
        8,
        "heads of a multiple of 4 numbers",
    ),
    "pictures of no square": (
        "kimi-k25",
        "clip.vision.image_max_pixels",
        16,
        "image_max_pixels is 16; at least 64",
    ),
    "no patch together": (
        "kimi-vl",
        "clip.vision.projector.scale_factor",
        0,
        "projector.scale_factor is 0",
    ),
    "a table of no square, of PaddleOCR-VL": (
        "paddleocr-vl",
        "v.position_embd.weight",
        torch.zeros(26, 48),
        "v.position_embd has 26 rows",
    ),
    "more pixels at least than at most": (
        "paddleocr-vl",
        "clip.vision.image_min_pixels",
        5000,
        "image_min_pixels is 5000; at most 4096",
    ),
    "a norm without an epsilon": (
        "paddleocr-vl",
        "clip.vision.attention.layer_norm_epsilon",
        0.0,
        "the eps of a norm of the tower (layer_norm_eps, rms_norm_eps) is 0.0; it must be",
    ),
    "an epsilon below nothing, of a projector": (
        "kimi-k25",
        "clip.vision.attention.layer_norm_epsilon",
        -1.0,
        "the eps of a norm of the tower (layer_norm_eps, rms_norm_eps) is -1.0; it must be",
    ),
    "an epsilon that is no number": (
        "llava-next",
        "clip.vision.attention.layer_norm_epsilon",
        float("nan"),
        "attention.layer_norm_epsilon is nan; a finite number",
    ),
    "an activation that is neither": (
        "minimax-m3",
        "clip.use_gelu",
        1,
        "clip.use_gelu is 1; true or false is needed",
    ),
    "two activations": (
        "minimax-m3",
        "clip.use_silu",
        True,
        "clip.use_silu is True; false, beside clip.use_gelu, is needed",
    ),
    "another downsampling": (
        "step3vl",
        "clip.vision.projector.scale_factor",
        2,
        "projector.scale_factor is 2; 4 is needed",
    ),
    "a square of no whole rows": (
        "step3vl",
        "clip.vision.image_size",
        40,
        "image_size is 40; a multiple of 16",
    ),
    "pictures smaller than the square": (
        "step3vl",
        "clip.vision.preproc_image_size",
        40,
        "preproc_image_size is 40; 48 to",
    ),
    "a table of no square, of Step3-VL": (
        "step3vl",
        "v.position_embd.weight",
        torch.zeros(143, 48),
        "v.position_embd has 143 rows",
    ),
    "a first product of nothing": (
        "minimax-m3",
        "mm.1.weight",
        torch.zeros(40),
        "lacks the tensor mm.1.weight of 2 dimensions",
    ),
    "heads that can't turn three ways": (
        "minimax-m3",
        "clip.vision.attention.head_count",
        8,
        "heads of at least 6 numbers",
    ),
    "half a form": (
        "llava-next",
        "clip.vision.image_grid_pinpoints",
        [24, 24, 48],
        "a height and a width of each form",
    ),
    "a form of no whole tiles": (
        "llava-next",
        "clip.vision.image_grid_pinpoints",
        [24, 30],
        "up to 64 whole tiles of 24 pixels",
    ),
    "lines of tiles without an end": (
        "llava-next",
        "model.image_newline",
        None,
        "lacks the tensor model.image_newline",
    ),
    "tiles that aren't merged": (
        "granite-vision",
        "clip.vision.mm_patch_merge_type",
        "flat",
        "spatial_unpad",
    ),
    "a layer that isn't there": (
        "granite-vision",
        "clip.vision.feature_layer",
        [0, 2, 4],
        "1 to 16 layers from 0 to 3",
    ),
    "rows of another size": (
        "llava-next",
        "mm.2.weight",
        torch.zeros(64, 72),
        "makes rows of 64 numbers",
    ),
    "an unknown projector": ("kimi-vl", "clip.projector_type", "kimi", "'kimi' is not served"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_says_is_refused_by_name(case: str, tmp_path: Path) -> None:
    kind, key, value, said = REFUSED[case]
    text, mmproj = written(kind, tmp_path, key, value)
    with pytest.raises(UnsupportedModel, match=re.escape(said)):
        read_mmproj(mmproj, read_config(GGUFFile(text)), vocabulary())


LACKING: dict[str, tuple[str, str, Any, str]] = {
    "a product": ("kimi-k25", "mm.2.weight", None, "lacks the tensor mm.2.weight of shape"),
    "a bias of a layer": ("kimi-vl", "v.blk.1.attn_k.bias", None, "tensor v.blk.1.attn_k.bias of"),
    "the table": ("kimi-k25", "v.patch_embd.weight", None, "lacks the tensor v.patch_embd.weight"),
    "a norm": ("llava-next", "v.pre_ln.weight", None, "lacks the tensor v.pre_ln.weight"),
    "the class token": ("llava-next", "v.position_embd.weight", None, "v.position_embd.weight of"),
    "the first product": ("minimax-m3", "mm.merger.fc1.weight", None, "mm.merger.fc1.weight of"),
    "a convolution": ("step3vl", "mm.1.bias", None, "lacks the tensor mm.1.bias of shape"),
    "a layer too many": (
        "kimi-vl",
        "clip.vision.block_count",
        2,
        "tensors that the model doesn't use: v.blk.2.",
    ),
    "a norm that is no number": (
        "paddleocr-vl",
        "v.post_ln.weight",
        torch.full((48,), torch.nan),
        "tensor v.post_ln.weight holds numbers that aren't finite",
    ),
    "an infinite number": (
        "minimax-m3",
        "mm.2.bias",
        torch.full((96,), torch.inf),
        "tensor mm.2.bias holds numbers that aren't finite",
    ),
    "another shape": ("kimi-vl", "mm.1.weight", torch.zeros(192, 48), "mm.1.weight has shape"),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_a_worker_can_not_load_is_called_as_in_the_file(case: str, tmp_path: Path) -> None:
    kind, key, value, said = LACKING[case]
    text, mmproj = written(kind, tmp_path, key, value)
    config, _ = read_mmproj(mmproj, read_config(GGUFFile(text)), vocabulary())
    files = WeightFiles(format="gguf", files=(str(text),), dtype="F32", mmproj=str(mmproj))
    with pytest.raises(UnsupportedModel, match=re.escape(said)):
        opened(config, files)


def test_minimaxs_videos_are_prepared_as_of_its_release(tmp_path: Path) -> None:
    theirs, hub = both("minimax-m3")
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_released(mmproj, "minimax-m3", theirs, hub.files.files)
    decoder = read_config(GGUFFile(text))
    _, media = read_mmproj(mmproj, decoder, vocabulary())
    assert media.kinds["video"].preparation == VideoFrames(
        pixels=known(3),
        min_pixels=3136,
        max_pixels=602_112,
        patch=4,
        merge=2,
        sampling=FrameSampling(num_frames=0, fps=1.0, max_frames=768, rule="apart"),
        texts=GroupTexts(begin="]<]start of image[>[", end="]<]end of image[>[", stamp="bracketed"),
    )
    bare = vocabulary().decode().replace("]<]video[>[", "]<]film[>[").encode()
    assert list(read_mmproj(mmproj, decoder, bare)[1].kinds) == ["image"]


GLM_SAMPLING: dict[str, tuple[Any, FrameSampling]] = {
    "Glm4.1v 9B Thinking": (
        "whole",
        FrameSampling(num_frames=0, fps=2.0, max_frames=4096, rule="glm4v", longest=300.0),
    ),
    "Zai-org_GLM-4.6V-Flash": (
        "tenths",
        FrameSampling(num_frames=0, fps=0.0, max_frames=4096, rule="glm46v", longest=300.0),
    ),
    "Some Finetune": ("", FrameSampling(num_frames=0)),
}


@pytest.mark.parametrize("name", GLM_SAMPLING)
def test_glms_videos_are_those_of_the_release_that_the_file_names(
    name: str, tmp_path: Path
) -> None:
    theirs, _ = both("glm4v")
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)

    def named(path: str, architecture: str) -> gguf.GGUFWriter:
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_name(name)
        return writer

    write_mmproj(mmproj, theirs, named)
    words = tokenizer(*OF_VIDEOS).to_str().encode()
    _, media = read_mmproj(mmproj, read_config(GGUFFile(text)), words)
    stamp, sampling = GLM_SAMPLING[name]
    if not stamp:
        assert list(media.kinds) == ["image"]
        return
    facts = media.kinds["video"]
    assert facts.preparation == VideoFrames(
        pixels=known(3),
        min_pixels=112 * 112,
        max_pixels=28 * 28 * 60_000,
        patch=4,
        merge=2,
        sampling=sampling,
        of_all=True,
        texts=GroupTexts(begin="<|begin_of_image|>", end="<|end_of_image|>", stamp=stamp),
    )
    assert (facts.token, facts.shown_id) == ("<|video|>", media.kinds["image"].token_id)
