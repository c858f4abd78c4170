"""Tiny models of DeepSeek-VL's, with one tower and with two, and of Janus's."""

from __future__ import annotations

from typing import Any

import torch

from penstock.forms.twofold import TwofoldImages
from tests.worker.vision.case import COLOURS, PLACEHOLDER, SEES, WIDE, Case, fixed

SIGLIP: dict[str, Any] = SEES | {"class": "SiglipVisionConfig", "image_size": 24, "patch_size": 6}
SAM: dict[str, Any] = SEES | {
    "class": "SamVisionConfig",
    "hidden_size": 32,
    "mlp_dim": 40,
    "image_size": 40,
    "patch_size": 4,
    "window_size": 4,
    "global_attn_indexes": [1, 2],
    "output_channels": 12,
}
JANUS: dict[str, Any] = {key: SEES[key] for key in SEES if key != "intermediate_size"} | {
    "class": "JanusVisionConfig",
    "mlp_ratio": 1.5,
    "image_size": 24,
    "patch_size": 6,
    "num_image_tokens": 16,
    "projection_dim": 96,
}
DRAWS: dict[str, Any] = {
    "class": "JanusVQVAEConfig",
    "num_embeddings": 16,
    "latent_channels": 32,
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "num_res_blocks": 1,
    "projection_dim": 16,
    "image_token_embed_dim": 96,
}
"""What draws pictures in Janus, which isn't read."""
DECODER: dict[str, Any] = {
    "text_config": WIDE | {"class": "LlamaConfig"},
    "image_token_id": PLACEHOLDER,
    "tie_word_embeddings": False,
}


def with_two_towers(config: Any) -> Any:
    """transformers' model. What starts as zeros, the vectors of distances and the share of the
    layer in between, becomes something."""
    import transformers

    model: Any = transformers.DeepseekVLHybridForConditionalGeneration(config)
    with torch.no_grad():
        model.model.high_res_vision_alpha.fill_(0.7)
        for name, parameter in model.named_parameters():
            if "rel_pos" in name:
                parameter.normal_(0, 0.3)
            elif "high_res" in name and "conv" in name:
                parameter.normal_(0, 0.2)
    return model


def as_makers_write(config: Any) -> Any:
    """transformers' Janus, whose folder is written as the makers'."""
    from tests.worker.vision.janus_files import MakersJanus

    return MakersJanus(config)


OF_DEEPSEEK: dict[str, Case] = {
    "deepseek-vl": Case("DeepseekVL", DECODER | {"vision_config": SIGLIP}, fixed(24, 16)),
    "deepseek-vl-hybrid": Case(
        "DeepseekVLHybrid",
        DECODER | {"vision_config": SIGLIP, "high_res_vision_config": SAM},
        TwofoldImages(
            pixels=COLOURS,
            large_pixels=COLOURS,
            side=24,
            large=40,
            least=4,
            rows=16,
            background=(127, 127, 127),
        ),
        with_two_towers,
        "DeepseekVLHybridForConditionalGeneration",
    ),
    "janus": Case("Janus", DECODER | {"vision_config": JANUS, "vq_config": DRAWS}, fixed(24, 16)),
    "janus-of-makers": Case(
        "Janus",
        DECODER | {"vision_config": JANUS, "vq_config": DRAWS},
        fixed(24, 16),
        as_makers_write,
        "MultiModalityCausalLM",
    ),
    "janus-without-biases": Case(
        "Janus",
        DECODER
        | {
            "vision_config": JANUS | {"attention_bias": False, "layer_norm_eps": 0.01},
            "vq_config": DRAWS,
            "tie_word_embeddings": True,
        },
        fixed(24, 16),
    ),
}
