"""A tiny Gemma 3n that hears: transformers' model without its sight, which needs timm, and what it
makes of prompts with sounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import Identity, functional
from transformers import AutoModel, Gemma3nForConditionalGeneration
from transformers.models.gemma3n import modeling_gemma3n
from transformers.models.gemma3n.configuration_gemma3n import Gemma3nVisionConfig

from penstock.model.sound_facts import EmphasisedMel
from tests.shared.media.sounds import RATE
from tests.worker.vision.vision_cases import PLACEHOLDER, TEXT

BINS, VECTORS = 12, 9
END = PLACEHOLDER + 1
"""The token behind a sound."""
MEL = EmphasisedMel(
    sampling_rate=RATE,
    bins=BINS,
    lowest=125.0,
    highest=7600.0,
    frame=512,
    hop=160,
    n_fft=1024,
    emphasis=0.97,
    floor=1e-5,
    multiple=128,
    seconds=1,
    rows=VECTORS + 1,
)
SETTINGS: dict[str, Any] = {
    "text_config": TEXT
    | {
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
    },
    "audio_config": {
        "input_feat_size": BINS,
        "hidden_size": 32,
        "conf_num_hidden_layers": 2,
        "conf_num_attention_heads": 4,
        "conf_attention_chunk_size": 4,
        "conf_attention_context_left": 6,
        "conf_attention_logit_cap": 3.0,
        "conf_conv_kernel_size": 3,
        "conf_residual_weight": 0.4,
        "sscp_conv_channel_size": [8, 6],
        "vocab_offset": PLACEHOLDER,
        "vocab_size": 9,
        "initializer_range": 0.2,
    },
    "vision_config": {"vocab_offset": PLACEHOLDER, "vocab_size": 1},
    "audio_soft_tokens_per_image": VECTORS,
    "audio_token_id": PLACEHOLDER,
    "eoa_token_id": END,
    "image_token_id": 999,
    "eoi_token_id": PLACEHOLDER,
}


def make(config: Any) -> Any:
    """Makes the model."""

    def part(config: Any) -> Any:
        if isinstance(config, Gemma3nVisionConfig):
            return Identity()
        return AutoModel.from_config(config)

    with patch.object(modeling_gemma3n, "AutoModel", SimpleNamespace(from_config=part)):
        return Gemma3nForConditionalGeneration(config)


def rows_of(theirs: Any, features: torch.Tensor) -> torch.Tensor:
    """What stands for a sound in its decoder's input. features: [1, windows, bands]."""
    tokens = torch.tensor([[5, *[PLACEHOLDER] * VECTORS, END]])
    caught: list[torch.Tensor] = []
    hook = theirs.model.language_model.register_forward_pre_hook(
        lambda _module, _given, named: caught.append(named["inputs_embeds"]), with_kwargs=True
    )
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    theirs(tokens, input_features=features, input_features_mask=mask)
    hook.remove()
    return caught[0][0, 1:]


def logits_of(theirs: Any, tokens: list[int], sounds: Sequence[torch.Tensor]) -> torch.Tensor:
    """Logits of a prompt in which the last place of each sound stands for the token behind it."""
    places = [at for at, token in enumerate(tokens) if token == PLACEHOLDER]
    given = torch.tensor([tokens])
    given[0, places[VECTORS :: VECTORS + 1]] = END
    also: dict[str, Any] = {}
    if sounds:
        also = {"input_features": torch.zeros(1), "input_features_mask": torch.ones(1).bool()}
    with torch.inference_mode(), one_by_one(theirs.model, sounds):
        mask = torch.ones_like(given)
        found: torch.Tensor = theirs(given, attention_mask=mask, **also).logits[0]
    return found


@contextmanager
def one_by_one(model: Any, sounds: Sequence[torch.Tensor]) -> Iterator[None]:
    """Each sound is encoded by itself: in a batch, the last window of a shorter one would see the
    silence behind it."""
    encode = model.get_audio_features

    def encoded(*_given: Any, **_named: Any) -> Any:
        rows = [
            encode(each, torch.zeros(each.shape[:2]).bool(), return_dict=True).pooler_output[0]
            for each in sounds
        ]
        most = max(map(len, rows))
        filled = [functional.pad(each, (0, 0, 0, most - len(each))) for each in rows]
        missing = [torch.arange(most) >= len(each) for each in rows]
        return SimpleNamespace(
            pooler_output=torch.stack(filled), audio_mel_mask=torch.stack(missing)
        )

    with patch.object(model, "get_audio_features", encoded):
        yield
