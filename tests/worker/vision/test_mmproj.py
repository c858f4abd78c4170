"""A GGUF model with its mmproj file answers as the checkpoint that both were made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch

from penstock.errors import ModelNotFound, PenstockError, UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.forms.canvas import CanvasImages
from penstock.forms.documents import DocumentImages
from penstock.forms.fitted import FittedImages
from penstock.forms.fixed import FixedFrames, FixedImages
from penstock.forms.naflex import NaflexImages
from penstock.forms.patches import PatchImages, VideoFrames
from penstock.forms.pixels import Pixels
from penstock.forms.pooled import PooledFrames, PooledImages
from penstock.forms.registry import ImagePreparation, VideoPreparation
from penstock.forms.rows import RowImages
from penstock.forms.scanned import ScannedImages
from penstock.forms.sliced import SlicedFrames, SlicedImages
from penstock.forms.tiled import TiledImages
from penstock.forms.video import FrameSampling, GroupTexts
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.model.projector_spec import PoolProjector
from penstock.model.tower_spec import RotaryPositions, VisionSpec
from penstock.prepare import load_manifest, prepare
from penstock.prepare.gguf_config import read_config
from penstock.prepare.mmproj.reading import read_mmproj
from testing.tiny_models import write_gguf, write_hub_folder
from tests.shared.media.media_tokenizer import HEARD, JANUS, OF_VIDEOS, OMNI_2_5, tokenizer
from tests.worker.driver import Driver
from tests.worker.vision.case import all_read
from tests.worker.vision.minicpm_cases import SLICED
from tests.worker.vision.mmproj_writer import (
    MEAN,
    STD,
    write_mmproj,
    write_text_half,
    write_vocabulary,
)
from tests.worker.vision.picture_runners import load, runner_of
from tests.worker.vision.pictures import Prepared, job_of, picture, prompts
from tests.worker.vision.vision_cases import CASES, both, opened

pytestmark = pytest.mark.slow

WANTED = 6


def known(pixels: int) -> Pixels:
    return Pixels(
        resample=pixels,
        rescale=1 / 255,
        mean=(MEAN[0], MEAN[1], MEAN[2]),
        std=(STD[0], STD[1], STD[2]),
    )


QWEN = PatchImages(pixels=known(3), min_pixels=3136, max_pixels=12_845_056, patch=4, merge=2)
GLM: dict[str, Any] = {"min_pixels": 12_544, "max_pixels": 11_760_000, "of_all": True}
PREPARED: dict[str, ImagePreparation] = {
    "gemma3": ScannedImages(
        pixels=known(2),
        height=32,
        width=32,
        rows=16,
        begin="\n\n<start_of_image>",
        end="<end_of_image>\n\n",
    ),
    "gemma4": PooledImages(pixels=known(3), patch=4, merge=3, most=280),
    "gemma4-clipped-with-inputs-of-layers": PooledImages(
        pixels=known(3), patch=4, merge=3, most=280
    ),
    "smolvlm": TiledImages(pixels=known(1), longest_edge=96, tile=24, rows=4),
    "pixtral": RowImages(pixels=known(3), longest_edge=64, patch=4),
    "mistral3": RowImages(pixels=known(3), longest_edge=64, patch=8),
    "lfm2-vl": NaflexImages(pixels=known(2), patch=4, merge=2, min_rows=64, max_rows=256, tile=128),
    "lighton-ocr": RowImages(pixels=known(3), longest_edge=64, patch=8, row_end="", end=""),
    "llava": FixedImages(pixels=known(3), height=28, width=28, rows=16, shortest_edge=28),
    "qwen2-vl": QWEN,
    "qwen2.5-vl": QWEN,
    "qwen3-vl": msgspec.structs.replace(QWEN, min_pixels=65_536, max_pixels=16_777_216),
    "qwen3.5": msgspec.structs.replace(QWEN, min_pixels=65_536, max_pixels=16_777_216),
    "qwen3-omni": QWEN,
    "qwen2.5-omni": QWEN,
    "glm4v": msgspec.structs.replace(QWEN, **GLM),
    "glm4v-moe": msgspec.structs.replace(QWEN, **GLM),
    "glm-ocr": msgspec.structs.replace(QWEN, **GLM),
    "deepseek-ocr": DocumentImages(
        pixels=known(3),
        patch=16,
        tile=640,
        page=128,
        tile_rows=100,
        page_rows=4,
        most=9,
        lines=True,
    ),
    "deepseek-ocr2": DocumentImages(
        pixels=known(3), patch=4, tile=32, page=48, tile_rows=4, page_rows=9
    ),
    "minicpm-v": SlicedImages(pixels=known(3), patch=4),
    **{
        f"minicpm-v-{version}": SlicedImages(
            pixels=known(3), patch=4, whole=1, queries=SLICED.queries
        )
        for version in ("2.6", "4.5")
    },
    "minicpm-v-of-four": SlicedImages(pixels=known(3), patch=4, merge=2),
    "internvl": CanvasImages(pixels=known(3), tile=24, rows=4, most=6),
    "janus": FixedImages(pixels=known(3), height=24, width=24, rows=16, fitted=14),
    "llama4-squares-of-four": FittedImages(
        pixels=msgspec.structs.replace(known(2), rounded=True), tile=32, rows=4
    ),
}


def vocabulary() -> bytes:
    return tokenizer(*JANUS, *HEARD, "<unk>", *OMNI_2_5).to_str().encode()


def alike(spec: VisionSpec) -> VisionSpec:
    """Without what tells how a file has its numbers."""
    if isinstance(spec.projector, PoolProjector):
        return msgspec.structs.replace(
            spec, projector=msgspec.structs.replace(spec.projector, plus_one=True)
        )
    positions = spec.tower.positions
    if isinstance(positions, RotaryPositions):
        plain = msgspec.structs.replace(positions, adjacent=False)
        tower = msgspec.structs.replace(spec.tower, positions=plain)
        return msgspec.structs.replace(spec, tower=tower)
    return spec


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", PREPARED)
def test_two_files_answer_as_the_checkpoint(case: str, tmp_path: Path) -> None:
    theirs, hub = both(case)
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_mmproj(mmproj, theirs)
    config, media = read_mmproj(mmproj, read_config(GGUFFile(text)), vocabulary())
    assert media.kinds["image"].preparation == PREPARED[case]
    assert config.vision is not None
    assert hub.config.vision is not None
    assert alike(config.vision) == all_read(hub.config.vision)
    files = WeightFiles(format="gguf", files=(str(text),), dtype="F32", mmproj=str(mmproj))
    ours = opened(config, files)
    shown = picture(CASES[case].preparation, 2, 1).inputs
    with torch.inference_mode():
        encoded = [one.tower.encode(one.tower.read(shown)) for one in (ours, hub)]
    # A factor less 1, in float32, is another number than the factor.
    close = 1e-5 if case == "gemma3" else 0.0
    assert torch.allclose(*encoded, rtol=close, atol=close)
    assert answers(case, ours, tmp_path) == answers(case, hub, tmp_path)


def answers(case: str, ours: Any, folder: Path) -> list[list[int]]:
    preparation = CASES[case].preparation
    asked = prompts(preparation)[1:4]
    shown = {
        part.item.name: part for parts in asked for part in parts if isinstance(part, Prepared)
    }
    runner = runner_of(ours, preparation)
    load(runner, folder, *shown.values())
    driver = Driver(runner, num_blocks=128, slots=8, budget=64)
    driver.encode = list(shown)
    jobs = [job_of(parts, WANTED, whole_spans=ours.config.vision.spans_whole) for parts in asked]
    while any(not job.done for job in jobs):
        driver._step([job for job in jobs if not job.done])
    return [job.tokens for job in jobs]


def pair(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A decoder of llama's family, 24 numbers wide, whose vocabulary has SmolVLM's tokens; and a
    mmproj file without tensors. changes: of the latter's metadata."""

    text = write_gguf(
        folder / "text.gguf",
        vocabulary=lambda writer: write_vocabulary(writer, tokenizer(), "<s>", "</s>"),
    )
    values = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": "idefics3",
        "clip.use_gelu": True,
        "clip.vision.projection_dim": 24,
        "clip.vision.image_size": 24,
        "clip.vision.patch_size": 4,
        "clip.vision.embedding_length": 48,
        "clip.vision.feed_forward_length": 64,
        "clip.vision.block_count": 2,
        "clip.vision.attention.head_count": 4,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projector.scale_factor": 3,
    } | changes
    writer = gguf.GGUFWriter(str(folder / "mmproj.gguf"), values.pop("architecture", "clip"))
    for key, value in values.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, (bool, str)):
            (writer.add_bool if isinstance(value, bool) else writer.add_string)(key, value)
        else:
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    writer.add_tensor("v.post_ln.weight", np.ones(48, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return text, folder / "mmproj.gguf"


def test_a_pair_is_prepared_and_known_again(tmp_path: Path) -> None:
    text, mmproj = pair(tmp_path)
    cache = tmp_path / "cache"
    folder = prepare(str(text), cache_dir=cache, mmproj=str(mmproj))
    manifest = load_manifest(folder)
    assert manifest.weights.mmproj == str(mmproj)
    assert manifest.media is not None
    assert manifest.decoder.vision is not None
    own = manifest.media.kinds["image"].preparation
    assert isinstance(own, TiledImages)
    assert own.longest_edge == 96  # four tiles, where the file doesn't say
    plain = load_manifest(prepare(str(text), cache_dir=cache))
    assert plain.decoder.vision is None
    assert plain.digest != manifest.digest
    only = prepare(str(text), cache_dir=cache, mmproj=str(mmproj), language_model_only=True)
    assert load_manifest(only).decoder.vision is None
    assert prepare(str(text), cache_dir=cache, mmproj=str(mmproj)) == folder
    copied = prepare(str(text), cache_dir=tmp_path / "other", mmproj=str(mmproj), copy_weights=True)
    carried = load_manifest(copied).weights.mmproj
    assert Path(carried).is_relative_to(tmp_path / "other")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architecture": "llama"}, "is no mmproj file"),
    "takes no images": ({"clip.has_vision_encoder": False}, "nothing to see or hear with"),
    "both towers": ({"clip.has_audio_encoder": True}, "holds both a tower that sees"),
    "another's ears": (
        {
            "clip.projector_type": "gemma4v",
            "clip.has_audio_encoder": True,
            "clip.audio.projector_type": "gemma4ua",
        },
        "one that hears \\('gemma4ua'\\), which is not served",
    ),
    "ears in the place of eyes": ({"clip.projector_type": "voxtral"}, "'voxtral' is not served"),
    "a factor of InternVL's": (
        {"clip.projector_type": "internvl", "clip.vision.projector.scale_factor": 4},
        "a divisor of 6",
    ),
    "LLaVA without CLIP": ({"clip.projector_type": "mlp"}, "without a class token"),
    "LLaVA with several layers": (
        {"clip.projector_type": "mlp", "clip.vision.feature_layer": [1, 2]},
        "several layers' outputs",
    ),
    "LLaVA-NeXT": (
        {"clip.projector_type": "mlp", "clip.vision.image_grid_pinpoints": [24, 48]},
        "lacks the tensor model.image_newline",
    ),
    "MiniCPM-V 2.5": (
        {"clip.projector_type": "resampler", "clip.minicpmv_version": 2},
        r"clip.minicpmv_version is 2; one of 3 \(2.6\)",
    ),
    "another projector": ({"clip.projector_type": "ldp"}, "'ldp' is not served; deepseekocr, "),
    "another decoder": ({"clip.projector_type": "gemma3"}, "belongs to Gemma 3"),
    "another size": ({"clip.vision.projection_dim": 32}, "rows of 32 numbers"),
    "a factor that doesn't divide": ({"clip.vision.projector.scale_factor": 4}, "a divisor of 6"),
    "heads that don't divide": ({"clip.vision.attention.head_count": 5}, "5 attention heads"),
    "no layers": ({"clip.vision.block_count": 0}, "block_count is 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unserved_settings_of_a_projector_are_named(case: str, tmp_path: Path) -> None:
    changes, message = REFUSED[case]
    text, mmproj = pair(tmp_path, **changes)
    with pytest.raises(UnsupportedModel, match=message):
        prepare(str(text), cache_dir=tmp_path / "cache", mmproj=str(mmproj))


def test_where_a_vocabulary_has_no_token_for_pictures_the_unknown_one_stands(
    tmp_path: Path,
) -> None:
    """Vicuna's, which LLaVA 1.5 has."""
    theirs, _ = both("llava")
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_mmproj(mmproj, theirs)
    plain = tokenizer().to_str().replace("<image>", "<unk>").encode()
    _, media = read_mmproj(mmproj, read_config(GGUFFile(text)), plain)
    facts = media.kinds["image"]
    assert (facts.placeholder, facts.token) == ("<image>", "<unk>")


def test_qwens_videos_are_prepared_as_of_a_release(tmp_path: Path) -> None:
    theirs, _ = both("qwen3-vl")
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_mmproj(mmproj, theirs)
    _, media = read_mmproj(mmproj, read_config(GGUFFile(text)), vocabulary())
    assert media.kinds["video"].preparation == VideoFrames(
        pixels=known(3),
        min_pixels=4096,
        max_pixels=25_165_824,
        patch=4,
        merge=2,
        sampling=FrameSampling(num_frames=0, fps=2.0, spread="ends"),
        of_all=True,
        texts=GroupTexts(begin="<|vision_start|>", end="<|vision_end|>", stamp="tagged"),
    )


@pytest.mark.parametrize("case", ["gemma4", "internvl", "minicpm-v"])
def test_videos_of_frames_that_are_pictures(case: str, tmp_path: Path) -> None:
    """As of releases; none where the vocabulary has no token for them."""
    theirs, _ = both(case)
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_mmproj(mmproj, theirs)
    decoder = read_config(GGUFFile(text))
    watching = tokenizer(*OF_VIDEOS).to_str()
    _, media = read_mmproj(mmproj, decoder, watching.encode())
    token, expected = VIDEOS[case]
    facts, own = media.kinds["video"], media.kinds["image"]
    assert facts.preparation == expected
    assert facts.placeholder == facts.token == token
    assert (facts.shown_id == own.token_id) == (case == "internvl")
    assert facts.numbered == own.numbered
    bare = watching.replace(token, "<film>").encode()
    assert list(read_mmproj(mmproj, decoder, bare)[1].kinds) == ["image"]


VIDEOS: dict[str, tuple[str, VideoPreparation]] = {
    "gemma4": (
        "<|video|>",
        PooledFrames(
            pixels=known(3),
            patch=4,
            merge=3,
            most=70,
            texts=GroupTexts(begin="<|image>", end="<image|>", between=" ", stamp="clock"),
            sampling=FrameSampling(num_frames=32),
        ),
    ),
    "internvl": (
        "<video>",
        FixedFrames(
            pixels=known(3),
            height=24,
            width=24,
            rows=4,
            texts=GroupTexts(begin="<img>", end="</img>", between="\n", stamp="frame"),
            sampling=FrameSampling(num_frames=32, spread="middles"),
        ),
    ),
    "minicpm-v": (
        "<|video_pad|>",
        SlicedFrames(
            image=SlicedImages(pixels=known(3), patch=4),
            sampling=FrameSampling(num_frames=0, max_frames=128, rule="minicpmv"),
        ),
    ),
}


def test_a_tower_that_needs_places_of_three_numbers(tmp_path: Path) -> None:
    theirs, _ = both("qwen2-vl")
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_mmproj(mmproj, theirs)
    config = read_config(GGUFFile(text))
    plain = msgspec.structs.replace(config.ropes[0], sections=())
    with pytest.raises(UnsupportedModel, match="positions of three numbers"):
        read_mmproj(mmproj, msgspec.structs.replace(config, ropes=(plain,)), vocabulary())


def test_a_model_whose_vocabulary_has_no_place_for_pictures(tmp_path: Path) -> None:
    _, mmproj = pair(tmp_path)
    config = read_config(GGUFFile(write_gguf(tmp_path / "plain.gguf")))
    assert isinstance(config, ModelConfig)
    bare = tokenizer().to_str().replace("<image>", "<picture>").encode()
    with pytest.raises(UnsupportedModel, match="lacks the token <image>"):
        read_mmproj(mmproj, config, bare)


@pytest.mark.parametrize("what", ["a folder", "no file"])
def test_beside_what_it_can_not_stand(what: str, tmp_path: Path) -> None:
    text, mmproj = pair(tmp_path)
    refused: dict[str, Callable[[], Path]] = {
        "a folder": lambda: prepare(
            str(write_hub_folder(tmp_path / "hub")), cache_dir=tmp_path, mmproj=str(mmproj)
        ),
        "no file": lambda: prepare(str(text), cache_dir=tmp_path, mmproj=str(tmp_path / "none")),
    }
    with pytest.raises(PenstockError, match=r"which goes with a \.gguf file|no such file") as error:
        refused[what]()
    assert isinstance(error.value, (UnsupportedModel, ModelNotFound))
