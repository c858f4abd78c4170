"""Tiny Gemma 3ns that see: transformers' model over a tower that is slow and obvious."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from penstock.forms.fixed import FixedImages
from tests.worker.vision.case import COLOURS, PLACEHOLDER, TEXT, Case
from tests.worker.vision.mobilenet_model import Wrapper

END = PLACEHOLDER + 1
"""The token behind a picture."""
HEARD_END, HEARD = PLACEHOLDER + 2, PLACEHOLDER + 3
"""The token behind a sound, and that of sounds, which is the last one, so it fills up sounds."""
VECTORS = 9
"""Vectors that a sound is filled up to."""
DECODER = TEXT | {
    "vocab_size": HEARD + 1,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 21,
    "num_kv_shared_layers": 2,
    "intermediate_size": [100] * 4,
    "activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.0],
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": PLACEHOLDER,
    "laurel_rank": 8,
}
HEARS: dict[str, Any] = {
    "input_feat_size": 12,
    "hidden_size": 32,
    "conf_num_hidden_layers": 2,
    "conf_num_attention_heads": 4,
    "conf_attention_chunk_size": 4,
    "conf_attention_context_left": 6,
    "conf_attention_logit_cap": 3.0,
    "conf_conv_kernel_size": 3,
    "conf_residual_weight": 0.4,
    "sscp_conv_channel_size": [8, 6],
    "vocab_offset": HEARD_END,
    "vocab_size": 2,
    "initializer_range": 0.2,
}


def settings(image: int, side: int) -> dict[str, Any]:
    """image: pixels in a row of a picture.  side: squares in one."""
    sees = {
        "image_size": image,
        "model_args": {"channel_multiplier": 1 / 16, "msfa_output_resolution": side},
        "vocab_offset": PLACEHOLDER,
        "vocab_size": 2,
        "rms_norm_eps": 1e-4,
    }
    return {
        "text_config": DECODER,
        "vision_config": sees,
        "audio_config": HEARS,
        "vision_soft_tokens_per_image": side * side,
        "audio_soft_tokens_per_image": VECTORS,
        "image_token_id": PLACEHOLDER,
        "eoi_token_id": END,
        "audio_token_id": HEARD,
        "eoa_token_id": HEARD_END,
    }


def made(config: Any) -> Any:
    """Makes the model. Of the placeholders of each item, of which a prompt has one more than
    transformers', the last becomes the token behind it."""
    from transformers import AutoModel, Gemma3nForConditionalGeneration
    from transformers.models.gemma3n import modeling_gemma3n
    from transformers.models.gemma3n.configuration_gemma3n import Gemma3nVisionConfig

    def part(config: Any) -> Any:
        if isinstance(config, Gemma3nVisionConfig):
            return Wrapper(config)
        return AutoModel.from_config(config)

    with patch.object(modeling_gemma3n, "AutoModel", SimpleNamespace(from_config=part)):
        model = Gemma3nForConditionalGeneration(config)

    def ended(_module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        tokens = given[0].clone()
        rows = {PLACEHOLDER: config.vision_soft_tokens_per_image, HEARD: VECTORS}
        for token, end in ((PLACEHOLDER, END), (HEARD, HEARD_END)):
            places = (tokens[0] == token).nonzero()[:, 0]
            tokens[0, places[rows[token] :: rows[token] + 1]] = end
        return (tokens, *given[1:]), named

    model.register_forward_pre_hook(ended, with_kwargs=True)
    return model


def rows_of(theirs: Any, pixels: torch.Tensor) -> torch.Tensor:
    """What stands for a picture in its decoder's input."""
    count = theirs.config.vision_soft_tokens_per_image + 1
    caught: list[torch.Tensor] = []
    hook = theirs.model.language_model.register_forward_pre_hook(
        lambda _module, _given, named: caught.append(named["inputs_embeds"]), with_kwargs=True
    )
    theirs(torch.tensor([[5, *[PLACEHOLDER] * count]]), pixel_values=pixels)
    hook.remove()
    return caught[0][0, 1:]


def _case(image: int, side: int) -> Case:
    shown = FixedImages(pixels=COLOURS, height=image, width=image, rows=side * side + 1)
    return Case("Gemma3n", settings(image, side), shown, made, "Gemma3nForConditionalGeneration")


OF_GEMMA3N: dict[str, Case] = {"gemma3n": _case(64, 2), "gemma3n-whole": _case(96, 6)}
"""The squares of the second are places of the last stage but one."""
