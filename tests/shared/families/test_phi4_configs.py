"""Phi-4-multimodal's files, as its makers and transformers write them, and as a stranger may."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken
from transformers import Phi4MultimodalConfig, Phi4MultimodalFeatureExtractor

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.pixels import Pixels
from penstock.forms.sheets import SheetImages
from penstock.model.audio_spec import BiasedConformerSpec
from penstock.model.config import ModelConfig
from penstock.model.media_facts import MediaFacts
from penstock.model.projector_spec import SheetProjector
from penstock.model.sound_facts import HammingMel
from penstock.model.sound_projector_spec import TwofoldProjector
from penstock.model.tower_spec import LearnedPositions
from penstock.prepare.hub_config import read_config
from penstock.prepare.media import read_media
from tests.shared.families.release_configs import release
from tests.shared.media.media_tokenizer import tokenizer

CONFIG = release("phi4_multimodal", "config.json")
PREPROCESSOR = release("phi4_multimodal", "preprocessor_config.json")

HALF = (0.5, 0.5, 0.5)
IMAGE, AUDIO = "<|endoftext10|>", "<|endoftext11|>"
"""The tokens that stand for pictures and for sounds in the makers' tokenizer."""


def read(values: dict[str, Any], **options: bool) -> ModelConfig:
    return read_config(Fields(values, "config.json"), **options)


def changed(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """path: of keys, with two underscores between them."""
    made = copy.deepcopy(values)
    *sections, key = path.split("__")
    inner = made
    for each in sections:
        inner = inner[each]
    inner[key] = value
    return made


def of_transformers(**changes: Any) -> dict[str, Any]:
    """config.json of the same model, as transformers' conversion writes it."""
    kept = ("hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    more = ("rope_scaling", "partial_rotary_factor", "tie_word_embeddings", "sliding_window")
    made = {key: CONFIG[key] for key in (*kept, *more)} | {
        "audio_config": {"bias_max_distance": 500}
    }
    values: dict[str, Any] = Phi4MultimodalConfig(**copy.deepcopy(made) | changes).to_dict()
    return values | {"architectures": ["Phi4MultimodalForCausalLM"]}


def test_the_makers_file_and_transformers_say_the_same() -> None:
    config, theirs = read(CONFIG), read(of_transformers())
    alike = [msgspec.structs.replace(each, ropes=()) for each in (config, theirs)]
    assert alike[0] == alike[1]
    assert config.ropes[0].scaling == theirs.ropes[0].scaling
    assert (config.architecture, config.num_layers, config.head_dim) == ("phi3", 32, 128)
    assert (config.ropes[0].dims, config.tie_word_embeddings) == (96, True)
    vision = config.vision
    assert vision is not None
    tower = vision.tower
    assert (tower.num_layers, tower.hidden_size, tower.last_norm) == (26, 1152, False)
    assert tower.positions == LearnedPositions(side=32, fractional=True)
    assert (vision.projector, vision.image_size) == (SheetProjector(), 448)
    assert vision.patches_in_row == 4
    audio = config.audio
    assert audio is not None
    assert audio.projector == TwofoldProjector()
    assert audio.tower == BiasedConformerSpec(
        hidden_size=1024,
        intermediate_size=1536,
        num_layers=24,
        num_heads=16,
        mel_bins=80,
        channels=1024,
        halvings=3,
        distances=500,
        reach=3,
    )
    assert [audio.rows(1, frames) for frames in (1, 8, 9, 4001)] == [1, 1, 2, 501]


def test_without_its_towers() -> None:
    assert not read(CONFIG, language_model_only=True).takes_media


def test_adapters_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        read(CONFIG)
    (said,) = [line.__dict__ for line in caplog.records if "adapters" in line.getMessage()]
    for part in ("--enable-lora", "--max-lora-rank 320", "speech-lora"):
        assert part in str(said)


def test_each_head_may_have_its_own_keys() -> None:
    assert read(CONFIG | {"num_key_value_heads": None}).num_kv_heads == 24


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("img_processor", {"layer_idx": -1}, "img_processor"),
        ("embd_layer__image_embd_layer__hd_transform_order", "glb_sub", "hd_transform_order"),
        ("embd_layer__image_embd_layer__use_hd_transform", False, "use_hd_transform"),
        ("model_type", "llama", "phi4mm are"),
        ("embd_layer__audio_embd_layer__use_qformer", True, "use_qformer"),
        ("audio_processor__config__batch_norm", True, "batch_norm"),
        ("audio_processor__config__chunk_size", 16, "chunk_size"),
        ("audio_processor__config__time_reduction", 6, "time_reduction"),
        ("audio_processor__config__input_layer", "conv2d", "input_layer"),
        ("audio_processor__config__relative_attention_bias_args__type", "none", "type"),
        ("rope_scaling__short_factor", [1.0], "48 numbers"),
    ],
)
def test_what_the_makers_code_could_do_is_refused(path: str, value: Any, named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(changed(CONFIG, path, value))


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("vision_config__feature_layer", 28, "layer 28"),
        ("vision_config__crop_size", 224, "crop_size"),
        ("vision_config__image_size", 462, "multiple of 2 patches"),
        ("vision_config__image_size", [448, 448], "image_size"),
        ("vision_config__num_channels", 1, "num_channels"),
        ("vision_config__hidden_act", "relu", "hidden_act"),
        ("audio_config__conv_glu_type", "relu", "conv_glu_type"),
        ("audio_config__depthwise_multiplier", 2, "depthwise_multiplier"),
        ("audio_config__ext_pw_out_channel", 512, "ext_pw_out_channel"),
        ("audio_config__downsample_rate", 2, "downsample_rate"),
        ("audio_config__nemo_activation", "silu", "nemo_activation"),
        ("audio_config__num_attention_heads", 7, "divide"),
        ("audio_config__bias_max_distance", 10**9, "bias_max_distance"),
    ],
)
def test_what_transformers_could_do_is_refused(path: str, value: Any, named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(changed(of_transformers(), path, value))


def media_of(folder: Path, config: dict[str, Any], said: dict[str, Any]) -> MediaFacts:
    """said: preprocessor_config.json."""
    words = tokenizer()
    words.add_special_tokens([AddedToken(text, special=True) for text in (IMAGE, AUDIO)])
    values = copy.deepcopy(config)
    for kind, section, text in (("image", "vision", IMAGE), ("audio", "audio", AUDIO)):
        own = values.setdefault(f"{section}_config", {})
        own[f"{kind}_token_id"] = words.token_to_id(text)
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    fields = Fields(values, "config.json")
    found = read_media(folder, fields, words.to_str().encode(), read(config).audio)
    assert found is not None
    return found


@pytest.mark.parametrize("config", [CONFIG, of_transformers()], ids=["makers", "transformers"])
def test_pictures_of_phi4_are_prepared_as_its_files_say(
    config: dict[str, Any], tmp_path: Path
) -> None:
    facts = media_of(tmp_path, config, PREPROCESSOR).kinds["image"]
    assert facts.token == facts.placeholder == IMAGE
    pixels = Pixels(resample=2, rescale=1 / 255, mean=HALF, std=HALF)
    assert facts.preparation == SheetImages(pixels=pixels, tile=448, patch=14)


MEL = HammingMel(
    sampling_rate=16_000,
    bins=80,
    lowest=0.0,
    highest=7690.0,
    frame=400,
    hop=160,
    n_fft=512,
    emphasis=0.97,
    reduced=8,
)


@pytest.mark.parametrize("config", [CONFIG, of_transformers()], ids=["makers", "transformers"])
def test_how_sounds_are_prepared(config: dict[str, Any], tmp_path: Path) -> None:
    facts = media_of(tmp_path, config, PREPROCESSOR).kinds["audio"]
    assert (facts.token, facts.preparation) == (AUDIO, MEL)


def test_what_transformers_saves_of_both(tmp_path: Path) -> None:
    """Each processor has a section of its own."""
    sounds = Phi4MultimodalFeatureExtractor().to_dict()
    pictures = {"image_processor_type": "Phi4MultimodalImageProcessor", "dynamic_hd": 12}
    sections = {"audio_processor": sounds, "image_processor": pictures}
    (tmp_path / "processor_config.json").write_text(json.dumps(sections, default=str))
    kinds = media_of(tmp_path, of_transformers(), {}).kinds
    assert kinds["audio"].preparation == MEL
    image = kinds["image"].preparation
    assert isinstance(image, SheetImages)
    assert image.most == 12


def test_a_token_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    words = tokenizer().to_str().encode()
    with pytest.raises(UnsupportedModel, match="200010, which is no special token"):
        read_media(tmp_path, Fields(CONFIG, "config.json"), words)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dynamic_hd": 0}, "dynamic_hd"),
        ({"dynamic_hd": 65}, "dynamic_hd"),
        ({"size": {"height": 384, "width": 384}}, "448"),
        ({"patch_size": 16}, "patch_size"),
        ({"resample": 2}, "resample"),
        ({"sharpened": True}, "sharpened is not known"),
        ({"audio_compression_rate": 4}, "audio_compression_rate"),
        ({"audio_feat_stride": 2}, "audio_feat_stride"),
        ({"feature_size": 128}, "80, what the tower hears"),
        ({"preemphasis": -1.0}, "a share"),
        ({"n_fft": 256}, "no less than win_length"),
        ({"mel_max_frequency": 9000.0}, "half of sampling_rate"),
        ({"padding_value": 1.0}, "padding_value"),
    ],
)
def test_settings_of_phi4_that_cant_be_followed_are_refused(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        media_of(tmp_path, CONFIG, PREPROCESSOR | changes)
