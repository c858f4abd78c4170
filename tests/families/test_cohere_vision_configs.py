"""config.json of Command A Vision and Aya Vision 8B, written from memory."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import SquareMLPProjector
from tests.families.test_multi_modality_configs import read
from tests.shared.families.release_configs import release

TEXT: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": 5,
    "eos_token_id": 255001,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.25,
    "max_position_embeddings": 16384,
    "model_type": "cohere2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 50000,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "vocab_size": 256000,
}
AYA = release("others", "aya-vision")
COMMAND: dict[str, Any] = {
    "alignment_intermediate_size": 36864,
    "architectures": ["Cohere2VisionForConditionalGeneration"],
    "downsample_factor": 2,
    "image_token_id": 255036,
    "model_type": "cohere2_vision",
    "text_config": TEXT | {"hidden_size": 12288, "num_attention_heads": 96},
    "torch_dtype": "bfloat16",
    "vision_config": AYA["vision_config"]
    | {"image_size": 512, "num_attention_heads": 12, "patch_size": 16},
}


def test_towers_and_projectors_of_cohere_are_read() -> None:
    aya, command = read(AYA).vision, read(COMMAND).vision
    assert aya is not None
    assert command is not None
    norm = NormSpec(kind="layer", eps=1e-6, bias=True)
    assert aya.projector == SquareMLPProjector(factor=2, norm=norm, inner=28_672, gated=True)
    assert command.projector == SquareMLPProjector(factor=2, norm=None, inner=36_864, gated=True)
    assert (aya.image_size, aya.patches_in_row, aya.tower.num_layers) == (364, 4, 27)
    assert (command.image_size, command.tower.head_dim, command.tower.last_norm) == (512, 96, True)
    assert read(AYA, text_config__model_type="cohere").architecture == "cohere"


@pytest.mark.parametrize(
    ("values", "changes", "named"),
    [
        (AYA, {"downsample_factor": 3}, "a divisor of 26 patches"),
        (AYA, {"downsample_factor": 0}, "downsample_factor is 0"),
        (AYA, {"alignment_intermediate_size": 28671}, "an even number"),
        (AYA, {"alignment_intermediate_size": 10**9}, "alignment_intermediate_size"),
        (AYA, {"adapter_layer_norm_eps": -1.0}, "adapter_layer_norm_eps"),
        (AYA, {"vision_feature_layer": [1, 2]}, "vision_feature_layer"),
        (AYA, {"vision_feature_layer": -30}, "layer -30 is taken"),
        (AYA, {"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy"),
        (COMMAND, {"vision_config__model_type": "clip_vision_model"}, "siglip_vision_model"),
        (COMMAND, {"vision_config__num_attention_heads": 7}, "7 attention heads"),
        (COMMAND, {"text_config__model_type": "llama"}, "cohere2, cohere are"),
    ],
)
def test_senseless_settings_are_refused(
    values: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(values, **changes)
