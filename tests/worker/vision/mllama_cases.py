"""Llama 3.2 Vision: a tiny model of it. test_mllama.py has its tests, as its pictures' rows stand
beside tokens, and not in their place."""

from __future__ import annotations

from typing import Any

from penstock.forms.aspects import AspectImages
from tests.worker.vision.case import COLOURS, Case

TOKEN = 199
"""The token of a picture, the first one behind those of the head."""
TILE = AspectImages(pixels=COLOURS, tile=16, rows=17)
TEXT: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "cross_attention_layers": [1, 3],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TOWER: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_global_layers": 2,
    "attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "vision_output_dim": 3 * 48,
    "intermediate_layers_indices": [1, 2],
    "initializer_range": 0.2,
}
OF_MLLAMA: dict[str, Case] = {
    "mllama": Case(
        "Mllama", {"text_config": TEXT, "vision_config": TOWER, "image_token_index": TOKEN}, TILE
    )
}


def takes_inputs(model: Any) -> Any:
    """The model, whose tower takes the inputs of some layers, as the makers' code does:
    transformers 5.17 takes their outputs."""
    from transformers.modeling_outputs import BaseModelOutput

    encoder = model.model.vision_model.transformer

    def forward(hidden_states: Any, attention_mask: Any = None) -> Any:
        states = []
        for layer in encoder.layers:
            states.append(hidden_states)
            hidden_states = layer(hidden_state=hidden_states, attention_mask=attention_mask)
        return BaseModelOutput(last_hidden_state=hidden_states, hidden_states=tuple(states))

    encoder.forward = forward
    return model
