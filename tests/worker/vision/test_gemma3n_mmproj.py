"""llama.cpp's mmproj file of Gemma 3n: it sees and hears as the checkpoint that it was made of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.forms.fixed import FixedImages
from penstock.forms.pixels import Pixels
from penstock.model.config import ModelConfig
from penstock.model.media_facts import MediaFacts
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.mmproj.reading import read_mmproj
from penstock_worker.media.hearing import AudioModel, open_audio_tower
from penstock_worker.media.interface import MEL as MEL_NAME
from penstock_worker.vision.vision_model import VisionModel, open_tower
from tests.shared.media.media_tokenizer import HEARD, tokenizer
from tests.worker.audio.gemma3n_hearing import MEL
from tests.worker.audio.hearing_models import heard
from tests.worker.vision.case import Case
from tests.worker.vision.gemma3n_cases import made, settings
from tests.worker.vision.mmproj_writer import finish
from tests.worker.vision.pictures import picture
from tests.worker.vision.vision_cases import saved

IMAGE = 256
EPS = 1e-5
VECTORS = 188
"""Vectors of a sound, as all releases have it."""
SHOWN = FixedImages(pixels=Pixels(resample=2, rescale=1 / 255), height=IMAGE, width=IMAGE, rows=257)
MODULES = {
    "conv_stem": "v.conv_stem",
    "msfa": "v.msfa",
    "blocks": "v.blk",
    "soft_embedding_norm": "mm.soft_emb_norm",
    "hard_embedding_norm": "mm.hard_emb_norm",
    "embedding_projection": "mm.input_projection",
    "embedding": "mm.embedding",
}
"""Names in the release, and what llama.cpp's converter makes of them."""
HEARS = {
    "subsample_conv_projection.conv_0.conv": "a.conv1d.0",
    "subsample_conv_projection.conv_0.norm": "a.conv1d.0.norm",
    "subsample_conv_projection.conv_1.conv": "a.conv1d.1",
    "subsample_conv_projection.conv_1.norm": "a.conv1d.1.norm",
    "subsample_conv_projection.input_proj_linear": "a.pre_encode.out",
    "embedding": "mm.a.embedding",
    "hard_embedding_norm": "mm.a.hard_emb_norm",
    "soft_embedding_norm": "mm.a.soft_emb_norm",
    "embedding_projection": "mm.a.input_projection",
}
"""What the model hears with is called so by the converter that had names for all of it, that of
gguf 0.18; the next one's stops at the norms of the convolutions."""
IN_LAYER = {
    "ffw_layer_start.pre_layer_norm": "ffn_norm",
    "ffw_layer_start.ffw_layer_1": "ffn_up",
    "ffw_layer_start.ffw_layer_2": "ffn_down",
    "ffw_layer_start.post_layer_norm": "ffn_post_norm",
    "ffw_layer_end.pre_layer_norm": "ffn_norm_1",
    "ffw_layer_end.ffw_layer_1": "ffn_up_1",
    "ffw_layer_end.ffw_layer_2": "ffn_down_1",
    "ffw_layer_end.post_layer_norm": "ffn_post_norm_1",
    "attention.pre_attn_norm": "ln1",
    "attention.attn.per_dim_scale": "per_dim_scale",
    "attention.attn.relative_position_embedding.pos_proj": "linear_pos",
    "attention.attn.q_proj": "attn_q",
    "attention.attn.k_proj": "attn_k",
    "attention.attn.v_proj": "attn_v",
    "attention.post": "attn_out",
    "attention.post_norm": "ln2",
    "lconv1d.pre_layer_norm": "conv_norm",
    "lconv1d.linear_start": "conv_pw1",
    "lconv1d.depthwise_conv1d": "conv_dw",
    "lconv1d.conv_norm": "norm_conv",
    "lconv1d.linear_end": "conv_pw2",
    "norm": "layer_pre_norm",
}


def heard_as(name: str) -> str:
    """The file's name for a tensor of the audio tower."""
    layer = re.fullmatch(r"conformer\.(\d+)\.(.+?)(\.weight)?", name)
    if layer is not None:
        return f"a.blk.{layer[1]}.{IN_LAYER[layer[2]]}{layer[3] or ''}"
    return f"{HEARS[name.removesuffix('.weight')]}.weight"


@pytest.fixture(scope="module")
def theirs() -> Any:
    torch.manual_seed(4)
    said = settings(IMAGE, 16)
    # The token that ends a picture is the first of the tower's own in all releases.
    said["vision_config"] = said["vision_config"] | {"vocab_offset": 191, "vocab_size": 1}
    said["image_token_id"] = 191
    said["vision_config"]["rms_norm_eps"] = EPS
    own = ("context_left", "chunk_size", "logit_cap")
    left_out = {"conf_residual_weight", *(f"conf_attention_{key}" for key in own)}
    said["audio_config"] = {
        key: value for key, value in said["audio_config"].items() if key not in left_out
    }
    said["audio_soft_tokens_per_image"] = VECTORS
    case = Case("Gemma3n", said, SHOWN)
    return made(case.config()).eval()


def write(path: Path, theirs: Any, change: dict[str, Any]) -> None:
    """change: of keys, and of tensors, which None takes away."""
    keys: dict[str, Any] = {
        "clip.has_vision_encoder": True,
        "clip.has_audio_encoder": True,
        "clip.vision.projector_type": "gemma3nv",
        "clip.audio.projector_type": "gemma3na",
        "clip.vision.projection_dim": theirs.config.text_config.hidden_size,
        "clip.vision.image_size": IMAGE,
        "clip.vision.patch_size": IMAGE // 256,
        "clip.vision.embedding_length": 2048,
        "clip.vision.feed_forward_length": 8192,
        "clip.vision.block_count": 128,
        "clip.vision.attention.head_count": 8,
        "clip.vision.attention.layer_norm_epsilon": EPS,
        "clip.audio.projection_dim": theirs.config.text_config.hidden_size,
        "clip.audio.embedding_length": 32,
        "clip.audio.feed_forward_length": 6144,
        "clip.audio.block_count": 2,
        "clip.audio.attention.head_count": 4,
        "clip.audio.num_mel_bins": 12,
        "clip.audio.attention.layer_norm_epsilon": 1e-5,
    }
    tensors: dict[str, Tensor] = {}
    for name, tensor in theirs.state_dict().items():
        heard_name = re.sub(r"^model\.(audio_tower|embed_audio)\.", "", name)
        if heard_name != name:
            tensors[heard_as(heard_name)] = tensor
            continue
        inner = re.sub(r"^model\.(vision_tower\.timm_model|embed_vision)\.", "", name)
        if inner == name:
            continue
        begin = next(each for each in MODULES if inner.startswith(f"{each}."))
        named = MODULES[begin] + inner.removeprefix(begin)
        wide = named == "v.conv_stem.conv.bias"
        tensors[named] = tensor.view(1, -1, 1, 1) if wide else tensor
    for name, value in change.items():
        own: dict[str, Any] = keys if name.startswith("clip.") else tensors
        own.pop(name)
        own |= {} if value is None else {name: value}
    writer: Any = gguf.GGUFWriter(str(path), "clip")
    for key, value in keys.items():
        kinds = {bool: writer.add_bool, str: writer.add_string, int: writer.add_uint32}
        kinds.get(type(value), writer.add_float32)(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.contiguous().float().numpy())
    finish(writer)


def read(
    folder: Path, text: ModelConfig, theirs: Any, **change: Any
) -> tuple[ModelConfig, MediaFacts, WeightFiles]:
    path = folder / "mmproj.gguf"
    write(path, theirs, change)
    config, media = read_mmproj(path, text, tokenizer(*HEARD).to_str().encode())
    files = WeightFiles(format="gguf", files=("none",), dtype="F32", mmproj=str(path))
    return config, media, files


def test_a_picture_has_the_bits_of_the_hubs_folder(theirs: Any, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    config, stated = saved(theirs, tmp_path / "hub")
    text = msgspec.structs.replace(config, vision=None, audio=None)
    found, media, files = read(tmp_path, text, theirs)
    assert found.vision == config.vision
    assert found.audio == config.audio
    facts = media.kinds["image"]
    assert facts.preparation == SHOWN
    assert (facts.token, facts.behind) == ("<image_soft_token>", "\n\n")
    assert facts.before == "\n\n<start_of_image>"
    shown = picture(SHOWN, 1, 1)
    encoded = []
    for each in (files, stated):
        tower = VisionModel(found, open_tower(each, torch.float32))
        with torch.inference_mode():
            encoded.append(tower.encode(tower.read(shown.inputs)))
    assert torch.equal(*encoded)
    assert set(GGUFFile(tmp_path / "mmproj.gguf").tensors) > {"v.blk.2.9.attn.key.down_conv.weight"}


def test_a_sound_has_the_bits_of_the_hubs_folder(theirs: Any, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    config, stated = saved(theirs, tmp_path / "hub")
    text = msgspec.structs.replace(config, vision=None, audio=None)
    found, media, files = read(tmp_path, text, theirs)
    facts = media.kinds["audio"]
    assert facts.preparation == msgspec.structs.replace(MEL, seconds=30, rows=VECTORS + 1)
    assert (facts.token, facts.behind) == ("<audio_soft_token>", "\n\n")
    assert facts.before == "\n\n<start_of_audio>"
    given = {MEL_NAME: heard("gemma3n", 0.7, 1).mel}
    encoded = []
    for each in (files, stated):
        tower = AudioModel(found, open_audio_tower(each, torch.float32))
        with torch.inference_mode():
            encoded.append(tower.encode(given))
    assert encoded[0].shape == (VECTORS + 1, config.hidden_size)
    assert torch.equal(*encoded)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("clip.audio.projector_type", "qwen3a", "one that hears ('qwen3a'), which is not served"),
        ("clip.audio.num_mel_bins", 0, "num_mel_bins is 0"),
        ("a.conv1d.0.weight", None, "lacks the tensor a.conv1d.0.weight"),
        ("mm.a.embedding.weight", torch.zeros(70_000, 32), "is of size 70000; 1 to 65536"),
        ("a.conv1d.1.norm.weight", None, "lacks the tensor a.conv1d.1.norm.weight"),
        ("clip.vision.image_size", 384, "whose 16th part 16 squares divide"),
        ("clip.vision.projection_dim", 32, "rows of 32 numbers"),
        ("mm.embedding.weight", None, "lacks the tensor mm.embedding.weight"),
        ("v.blk.2.0.pw_proj.conv.weight", None, "lacks the tensor v.blk.2.0.pw_proj"),
        ("mm.soft_emb_norm.weight", None, "lacks the tensor mm.soft_emb_norm.weight"),
        ("mm.input_projection.weight", None, "lacks the tensor mm.input_projection.weight"),
        ("v.blk.3.7.norm.weight", None, "lacks the tensor v.blk.3.7.norm.weight"),
    ],
)
def test_what_is_wrong_is_called_by_its_name(
    theirs: Any, name: str, value: Any, said: str, tmp_path: Path
) -> None:
    (tmp_path / "hub").mkdir()
    config, _ = saved(theirs, tmp_path / "hub")
    text = msgspec.structs.replace(config, vision=None, audio=None)

    def load() -> VisionModel:
        found, _, files = read(tmp_path, text, theirs, **{name: value})
        AudioModel(found, open_audio_tower(files, torch.float32))
        return VisionModel(found, open_tower(files, torch.float32))

    with pytest.raises(UnsupportedModel, match=re.escape(said)):
        load()
