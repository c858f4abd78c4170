"""config.json of Qwen3-Omni 30B-A3B, written from memory in its makers' form, and what one file of
theirs says of pictures and sounds."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.families.qwen3_asr import lifted
from penstock.formats.fields import Fields
from penstock.model.audio_spec import BlockTowerSpec, NarrowProjector
from penstock.model.config import ModelConfig
from penstock.model.image_facts import PatchImages
from penstock.model.sound_facts import BlockMel
from penstock.model.tower_spec import RotaryPositions
from penstock.prepare.hub_config import read_config
from penstock.prepare.media import read_media
from tests.shared.audio_configs import QWEN3_ASR
from tests.shared.media.media_tokenizer import tokenizer

HEARS: dict[str, Any] = QWEN3_ASR["thinker_config"]["audio_config"]
OMNI: dict[str, Any] = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
    "code2wav_config": {"codebook_size": 2048, "num_quantizers": 16},
    "enable_audio_output": True,
    "im_end_token_id": 151645,
    "im_start_token_id": 151644,
    "model_type": "qwen3_omni_moe",
    "talker_config": {"num_code_groups": 16, "text_config": {"hidden_size": 1024}},
    "thinker_config": {
        "audio_config": HEARS
        | {
            "d_model": 1280,
            "encoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "encoder_layers": 32,
            "model_type": "qwen3_omni_moe_audio_encoder",
            "num_hidden_layers": 32,
        },
        "audio_end_token_id": 151670,
        "audio_start_token_id": 151669,
        "audio_token_id": 151675,
        "image_token_id": 151655,
        "model_type": "qwen3_omni_moe_thinker",
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "text_config": {
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 768,
            "max_position_embeddings": 65536,
            "mlp_only_layers": [],
            "model_type": "qwen3_omni_moe_text",
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_attention_heads": 32,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "interleaved": True,
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
                "type": "default",
            },
            "rope_theta": 1000000,
            "shared_expert_intermediate_size": 0,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "vocab_size": 152064,
        },
        "user_token_id": 872,
        "video_token_id": 151656,
        "vision_config": {
            "apply_vit_abs_pos_embed": True,
            "deepstack_visual_indexes": [8, 16, 24],
            "depth": 27,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "image_size": 768,
            "in_channels": 3,
            "intermediate_size": 4304,
            "model_type": "qwen3_omni_moe_vision_encoder",
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 2048,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
    },
}
BOTH: dict[str, Any] = {
    "chunk_length": 300,
    "dither": 0.0,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "hop_length": 160,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "max_pixels": 12845056,
    "merge_size": 2,
    "min_pixels": 3136,
    "n_fft": 400,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "left",
    "padding_value": 0.0,
    "patch_size": 16,
    "processor_class": "Qwen3OmniMoeProcessor",
    "return_attention_mask": True,
    "sampling_rate": 16000,
    "temporal_patch_size": 2,
}
"""preprocessor_config.json."""


def read(section: str = "", **changes: Any) -> ModelConfig:
    """changes: of what listens and writes, or of a section of it."""
    values = copy.deepcopy(OMNI)
    inner = values["thinker_config"]
    (inner[section] if section else inner).update(changes)
    return read_config(lifted(Fields(values, "config.json")))


def test_what_it_is_made_of() -> None:
    config = read()
    assert (config.architecture, config.num_layers, config.head_dim) == ("qwen3_moe", 48, 128)
    (rope,) = config.ropes
    assert (rope.sections, rope.interleaved, rope.theta) == ((24, 20, 20), True, 1e6)
    vision, audio = config.vision, config.audio
    assert vision is not None
    assert audio is not None
    assert vision.deepstack_layers == (8, 16, 24)
    assert vision.tower.positions == RotaryPositions(table=48)
    assert config.media_width == 4 * 2048
    assert isinstance(audio.tower, BlockTowerSpec)
    assert (audio.tower.num_layers, audio.tower.block, audio.tower.seen) == (32, 100, 8)
    assert (audio.tower.short_alone, audio.projector) == (True, NarrowProjector())


@pytest.mark.parametrize(
    ("section", "changes", "named"),
    [
        ("audio_config", {"n_window": 40}, "n_window is 40; 50 is needed"),
        ("audio_config", {"output_dim": 1024}, "2048, the decoder's hidden size"),
        ("audio_config", {"encoder_layers": 10**9}, "num_layers|encoder_layers"),
        ("vision_config", {"deepstack_visual_indexes": [27]}, "ascending layers below 27"),
        ("vision_config", {"num_position_embeddings": 2000}, "a square number"),
        ("vision_config", {"out_hidden_size": 3584}, "out_hidden_size"),
        ("text_config", {"sliding_window": 4096}, "sliding_window"),
        ("text_config", {"model_type": "qwen3"}, "qwen3_omni_moe_text are"),
        ("text_config", {"rope_scaling": {"mrope_section": [1, 1, 1]}}, "add up to 64"),
    ],
)
def test_senseless_settings_are_refused(section: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(section, **changes)


def facts(folder: Path, said: dict[str, Any]) -> Any:
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    words = tokenizer()
    ids = {"image_token_id": "<|image_pad|>", "audio_token_id": "<|AUDIO|>"}
    values = copy.deepcopy(OMNI)
    values["thinker_config"] |= {key: words.token_to_id(text) for key, text in ids.items()}
    config = lifted(Fields(values, "config.json"))
    return read_media(folder, config, words.to_str().encode(), read_config(config).audio)


def test_one_file_about_pictures_and_sounds(tmp_path: Path) -> None:
    """No videos, whose positions go by time."""
    kinds = facts(tmp_path, BOTH).kinds
    assert set(kinds) == {"image", "audio"}
    shown, heard = kinds["image"].preparation, kinds["audio"].preparation
    assert isinstance(shown, PatchImages)
    assert (shown.patch, shown.merge, shown.max_pixels) == (16, 2, 12_845_056)
    assert isinstance(heard, BlockMel)
    assert (heard.block, heard.least, heard.bins, heard.seconds) == (100, 400, 128, 300)
    assert (kinds["image"].placeholder, kinds["audio"].token) == ("<|image_pad|>", "<|AUDIO|>")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"patch_size": 14}, "patch_size is 14; what the vision tower has"),
        ({"feature_size": 80}, "feature_size is 80"),
        ({"sharpened": True}, "sharpened is not known"),
        ({"hop_length": 0}, "hop_length"),
    ],
)
def test_settings_that_cant_be_followed(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        facts(tmp_path, BOTH | changes)
