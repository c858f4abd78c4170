"""A tiny Phi-4-multimodal that hears: transformers' model, and what it makes of prompts with
sounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Phi4MultimodalFeatureExtractor, Phi4MultimodalForCausalLM

from penstock.model.sound_facts import HammingMel
from tests.shared.media.sounds import RATE
from tests.worker.vision.sheet_models import HEARS
from tests.worker.vision.vision_cases import PLACEHOLDER, SEES, TEXT

BINS = 12
MEL = HammingMel(
    sampling_rate=RATE,
    bins=BINS,
    lowest=0.0,
    highest=7690.0,
    frame=400,
    hop=160,
    n_fft=512,
    emphasis=0.97,
    reduced=8,
)
SETTINGS: dict[str, Any] = TEXT | {
    "hidden_size": 96,
    "vision_config": SEES
    | {"image_size": 16, "patch_size": 4, "crop_size": 16, "image_token_id": 999},
    "audio_config": HEARS | {"num_blocks": 2, "input_size": BINS, "audio_token_id": PLACEHOLDER},
}


def make(config: Any) -> Any:
    """Makes the model, with numbers that aren't zeros and ones where it starts with these."""
    model = Phi4MultimodalForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".b1", ".b2")):
                parameter.normal_(0, 0.5)
            elif "relative_attention_bias" in name:
                parameter.normal_(0, 1.5)
        for name, each in model.named_buffers():
            if name.endswith("global_mean"):
                each.normal_(4, 2)
            elif name.endswith("global_invstd"):
                each.uniform_(0.2, 0.5)
    return model


def features_of(samples: Any) -> torch.Tensor:
    """What transformers' extractor makes of a sound, [1, windows, bands]."""
    made = Phi4MultimodalFeatureExtractor(feature_size=BINS)(
        samples, sampling_rate=RATE, return_tensors="pt"
    )
    found: torch.Tensor = made["audio_input_features"]
    return found


def rows_of(theirs: Any, features: torch.Tensor, mode: str = "speech") -> torch.Tensor:
    """What stands for a sound in its decoder's input, [rows, hidden]. mode: of its projector."""
    rows = -(-features.shape[1] // theirs.config.audio_config.time_reduction)
    tokens = torch.full((1, rows), theirs.config.audio_config.audio_token_id)
    found: torch.Tensor = theirs.model.embed_tokens_extend.audio_embed(
        tokens,
        torch.zeros(1, rows, theirs.config.hidden_size),
        audio_input_features=features,
        audio_embed_sizes=torch.tensor([rows]),
        audio_projection_mode=mode,
    )
    return found[0]


def logits_of(theirs: Any, given: torch.Tensor, sounds: Sequence[torch.Tensor]) -> torch.Tensor:
    """Logits of a prompt whose sounds are encoded one by one: in a batch, transformers adds the
    mask of what isn't there to scores, as a number."""
    embedded = theirs.model.embed_tokens(given)
    if sounds:
        embedded[given == PLACEHOLDER] = torch.cat([rows_of(theirs, each) for each in sounds])
    found: torch.Tensor = theirs(inputs_embeds=embedded).logits[0]
    return found
