"""A tiny Qwen2-Audio with random weights as a folder of the hub, and what transformers says with
it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.sounds import RATE
from tests.system.hub_folders import continued, write_folder

BINS, SECONDS = 12, 2
TEMPLATE = (
    "{% set sounds = namespace(value=0) %}"
    "{% for m in messages %}{{ m['role'] }}:{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{% if 'audio' in c or 'audio_url' in c %}"
    "{% set sounds.value = sounds.value + 1 %}"
    "Audio {{ sounds.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %};"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Looks for sounds by the keys of their parts, as Qwen2-Audio's own does."""


def write_qwen2_audio(folder: Path) -> Path:
    """The folder, with weights, tokenizer, template and the feature extractor's settings."""
    import torch
    from transformers import Qwen2AudioConfig, WhisperFeatureExtractor
    from transformers import Qwen2AudioForConditionalGeneration as Qwen2Audio

    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    config = Qwen2AudioConfig(
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(ids),
            "hidden_size": 96,
            "intermediate_size": 100,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.25,
            "bos_token_id": ids["<s>"],
            "eos_token_id": ids["</s>"],
            "pad_token_id": ids["</s>"],
        },
        audio_config={
            "num_mel_bins": BINS,
            "encoder_layers": 3,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "d_model": 48,
            "max_source_positions": 50 * SECONDS,
            "initializer_range": 0.2,
        },
        audio_token_index=ids["<|AUDIO|>"],
    )
    torch.manual_seed(17)
    model = Qwen2Audio(config).eval()
    with torch.no_grad():
        model.model.audio_tower.embed_positions.weight.normal_(0, 0.3)
    extractor = WhisperFeatureExtractor(feature_size=BINS, chunk_length=SECONDS)
    return write_folder(folder, model, extractor, tokens, template=TEMPLATE)


@cache
def _theirs(folder: Path) -> tuple[Any, Any]:
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        WhisperFeatureExtractor,
    )

    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="</s>", pad_token="</s>"
    )
    processor = Qwen2AudioProcessor(WhisperFeatureExtractor.from_pretrained(folder), fast)
    return Qwen2AudioForConditionalGeneration.from_pretrained(folder).eval(), processor


def heard_by_transformers(
    folder: Path, prompt: str, sounds: list[np.ndarray], count: int
) -> tuple[list[int], list[int]]:
    """(the prompt's ids, so many tokens, the likeliest each, that come after it)."""
    model, processor = _theirs(folder)
    given = processor(text=[prompt], audio=sounds, sampling_rate=RATE, return_tensors="pt")
    return continued(model, given, count)
