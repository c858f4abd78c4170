"""Gemma 4 12B of two GGUF files sees, watches and hears as the checkpoint they were made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.forms.pooled import PooledFrames
from penstock.forms.video import FrameSampling, GroupTexts
from penstock.model.audio_spec import AudioSpec
from penstock.model.config import ModelConfig
from penstock.model.media_facts import MediaFacts
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.gguf_config import read_config
from penstock.prepare.mmproj.reading import read_mmproj
from penstock_worker.media.hearing import MEL, AudioModel, open_audio_tower
from tests.shared.media.media_tokenizer import OF_VIDEOS, tokenizer
from tests.worker.audio.hearing_cases import SAMPLES
from tests.worker.audio.hearing_models import heard
from tests.worker.media.both_senses import unified
from tests.worker.vision.mmproj_writer import finish, write_text_half
from tests.worker.vision.newer_cases import POOLED
from tests.worker.vision.pictures import picture
from tests.worker.vision.test_mmproj import answers
from tests.worker.vision.vision_cases import opened, saved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NAMES = {
    "patch_dense.weight": "v.patch_embd.weight",
    "patch_dense.bias": "v.patch_embd.bias",
    "patch_ln1.weight": "v.patch_norm.1.weight",
    "patch_ln1.bias": "v.patch_norm.1.bias",
    "patch_ln2.weight": "v.patch_norm.2.weight",
    "patch_ln2.bias": "v.patch_norm.2.bias",
    "pos_norm.weight": "v.patch_norm.3.weight",
    "pos_norm.bias": "v.patch_norm.3.bias",
    "pos_embedding": "v.position_embd.weight",
    "embed_vision.multimodal_embedder.embedding_projection.weight": "mm.input_projection.weight",
    "embed_audio.embedding_projection.weight": "mm.a.input_projection.weight",
}
"""Ends of transformers' names, and what llama.cpp's converter makes of them."""
EPS = 1e-6
"""What both norms add: the converter knows no other value."""


def by_colour(pixels: Tensor) -> Tensor:
    """The last dimension with a square's reds first, where the hub has each pixel's colours
    together."""
    side = round((pixels.shape[-1] // 3) ** 0.5)
    return pixels.unflatten(-1, (side, side, 3)).movedim(-1, -3).flatten(-3)


def write_mmproj(
    path: Path, theirs: Any, change: Callable[[dict[str, Any], dict[str, Tensor]], None]
) -> None:
    """change: makes another file of its keys and tensors."""
    hidden, sees = theirs.config.text_config.hidden_size, theirs.config.vision_config
    keys: dict[str, Any] = {
        "clip.has_vision_encoder": True,
        "clip.has_audio_encoder": True,
        "clip.vision.projector_type": "gemma4uv",
        "clip.audio.projector_type": "gemma4ua",
        "clip.vision.projection_dim": hidden,
        "clip.vision.image_size": 224,
        "clip.vision.patch_size": sees.patch_size,
        "clip.vision.embedding_length": sees.mm_embed_dim,
        "clip.vision.attention.layer_norm_epsilon": EPS,
        "clip.audio.projection_dim": hidden,
        "clip.audio.embedding_length": 640,
        "clip.audio.num_mel_bins": 128,
        "clip.audio.attention.layer_norm_epsilon": EPS,
    }
    for part in ("vision", "audio"):
        for key in ("feed_forward_length", "block_count", "attention.head_count"):
            keys[f"clip.{part}.{key}"] = 0
    tensors: dict[str, Tensor] = {}
    for name, tensor in theirs.state_dict().items():
        found = next((NAMES[end] for end in NAMES if name.endswith(end)), None)
        if found is None:
            assert not name.startswith(("model.embed_vision", "model.embed_audio")), name
            continue
        if found in ("v.patch_embd.weight", "v.patch_norm.1.weight", "v.patch_norm.1.bias"):
            tensor = by_colour(tensor)
        tensors[found] = tensor.transpose(0, 1) if "position" in found else tensor
    change(keys, tensors)
    writer = gguf.GGUFWriter(str(path), "clip")
    for key, value in keys.items():
        if isinstance(value, (bool, str)):
            (writer.add_bool if isinstance(value, bool) else writer.add_string)(key, value)
        else:
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.contiguous().float().numpy())
    finish(writer)


def nothing(keys: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Changes nothing."""


def two_files(
    folder: Path, theirs: Any, change: Callable[[dict[str, Any], dict[str, Tensor]], None] = nothing
) -> tuple[ModelConfig, MediaFacts, WeightFiles]:
    text, mmproj = folder / "text.gguf", folder / "mmproj.gguf"
    write_text_half(text, theirs)
    write_mmproj(mmproj, theirs, change)
    vocabulary = tokenizer(*OF_VIDEOS).to_str().encode()
    config, media = read_mmproj(mmproj, read_config(GGUFFile(text)), vocabulary)
    files = WeightFiles(format="gguf", files=(str(text),), dtype="F32", mmproj=str(mmproj))
    return config, media, files


@pytest.fixture(scope="module")
def theirs() -> Any:
    return unified(rms_norm_eps=EPS)


def test_both_of_one_file(theirs: Any, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    config, stated = saved(theirs, tmp_path / "hub")
    hub, hears = opened(config, stated), AudioModel(config, open_audio_tower(stated, torch.float32))
    found, media, files = two_files(tmp_path, theirs)
    assert (found.vision, found.audio) == (config.vision, config.audio)
    assert media.kinds["image"].preparation == msgspec.structs.replace(POOLED, most=280)
    assert media.kinds["audio"].preparation == SAMPLES
    assert (media.kinds["audio"].before, media.kinds["audio"].behind) == ("<|audio>", "<audio|>")
    assert media.kinds["video"].preparation == PooledFrames(
        pixels=POOLED.pixels,
        patch=4,
        merge=3,
        most=70,
        texts=GroupTexts(begin="<|image>", end="<image|>", between=" ", stamp="clock"),
        sampling=FrameSampling(num_frames=32),
    )
    ours = opened(found, files)
    own = AudioModel(found, open_audio_tower(files, torch.float32))
    sound, shown = heard("gemma4-12b", 0.7, 1), picture(POOLED, 2, 1).inputs
    with torch.inference_mode():
        assert torch.equal(*(each.encode({MEL: sound.mel}) for each in (own, hears)))
        assert torch.equal(*(each.tower.encode(each.tower.read(shown)) for each in (ours, hub)))
    assert answers("gemma4-12b", ours, tmp_path) == answers("gemma4-12b", hub, tmp_path)


def test_a_file_that_only_sees(theirs: Any, tmp_path: Path) -> None:
    def deaf(keys: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        keys["clip.has_audio_encoder"] = False
        del tensors["mm.a.input_projection.weight"]

    config, media, files = two_files(tmp_path, theirs, deaf)
    assert config.audio is None
    assert set(media.kinds) == {"image", "video"}
    opened(config, files)


REFUSED: dict[str, tuple[str, Any, str]] = {
    "squares that are too large": ("clip.vision.patch_size", 100, "a square of 3 patches of 100"),
    "no pixels": ("clip.vision.patch_size", 0, "patch_size is 0"),
    "no patches": ("clip.vision.projector.scale_factor", 0, "scale_factor is 0"),
    "another decoder's rows": ("clip.vision.projection_dim", 32, "rows of 32 numbers"),
    "one table": ("v.position_embd.weight", torch.zeros(1, 40, 48), "must have two tables"),
    "no table": ("v.position_embd.weight", None, "lacks the tensor v.position_embd.weight"),
    "frames of no samples": (
        "mm.a.input_projection.weight",
        torch.zeros(96),
        "lacks the tensor mm.a.input_projection.weight of 2 dimensions",
    ),
    "frames that are too long": (
        "mm.a.input_projection.weight",
        torch.zeros(1, 70_000),
        "takes 70000 samples; 1 to 65536",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unserved_settings_of_a_unified_projector_are_named(
    theirs: Any, case: str, tmp_path: Path
) -> None:
    key, value, words = REFUSED[case]

    def wrong(keys: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        where: dict[str, Any] = keys if key.startswith("clip.") else tensors
        where.pop(key, None)
        if value is not None:
            where[key] = value

    with pytest.raises(UnsupportedModel, match=words):
        two_files(tmp_path, theirs, wrong)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v.patch_norm.1.weight", r"lacks the tensor v\.patch_norm\.1\.weight"),
        ("v.patch_norm.3.bias", r"lacks the tensor v\.patch_norm\.3\.bias"),
        ("v.patch_embd.weight", r"lacks the tensor v\.patch_embd\.weight"),
        ("mm.input_projection.weight", r"lacks the tensor .*mm\.input_projection\.weight"),
    ],
)
def test_a_tensor_that_a_file_lacks_is_called_by_its_name(
    theirs: Any, name: str, said: str, tmp_path: Path
) -> None:
    config, _, files = two_files(tmp_path, theirs, lambda keys, tensors: tensors.pop(name))
    with pytest.raises(UnsupportedModel, match=said):
        opened(config, files)


def test_another_models_decoder(theirs: Any, tmp_path: Path) -> None:
    config, _, files = two_files(tmp_path, theirs)
    assert isinstance(config.audio, AudioSpec)
    other = msgspec.structs.replace(config, architecture="gemma3", vision=None, audio=None)
    assert files.mmproj is not None
    with pytest.raises(UnsupportedModel, match="belongs to Gemma 4 12B"):
        read_mmproj(Path(files.mmproj), other, tokenizer().to_str().encode())
