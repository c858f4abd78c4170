"""Command A Vision and Aya Vision: tiny models with either of Command R's decoders."""

from __future__ import annotations

from typing import Any

from penstock.forms.canvas import CanvasImages
from tests.worker.vision.case import COLOURS, PLACEHOLDER, SEES, WIDE, Case

SIGLIP: dict[str, Any] = SEES | {
    "class": "SiglipVisionConfig",
    "image_size": 24,
    "patch_size": 4,
    "vision_use_head": False,
}
WINDOWED: dict[str, Any] = WIDE | {
    "class": "Cohere2Config",
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 21,
    "logit_scale": 0.5,
}
TILES: dict[str, Any] = {"pixels": COLOURS, "tile": 24, "rows": 9}
OF_COHERE: dict[str, Case] = {
    "command-a-vision": Case(
        "Cohere2Vision",
        {
            "text_config": WINDOWED,
            "vision_config": SIGLIP,
            "image_token_id": PLACEHOLDER,
            "alignment_intermediate_size": 80,
        },
        CanvasImages(**TILES, fitting=True),
    ),
    "aya-vision": Case(
        "AyaVision",
        {
            "text_config": WINDOWED,
            "vision_config": SIGLIP,
            "image_token_index": PLACEHOLDER,
            "vision_feature_layer": -1,
            "adapter_layer_norm_eps": 1e-3,
        },
        CanvasImages(**TILES),
    ),
    "aya-vision-command-r": Case(
        "AyaVision",
        {
            "text_config": WIDE | {"class": "CohereConfig", "logit_scale": 0.5},
            "vision_config": SIGLIP,
            "image_token_index": PLACEHOLDER,
            "vision_feature_layer": -2,
            "downsample_factor": 3,
        },
        CanvasImages(**TILES | {"rows": 4}),
    ),
}
