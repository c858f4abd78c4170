"""A tiny Whisper with random weights as a folder of the hub, and what transformers says with it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from tests.system.hub_folders import write_folder

SECONDS = 2
ROWS = 50 * SECONDS
"""Rows of the encoder's output."""
TARGETS = 64
RATE = 16_000
START, END = "<|startoftranscript|>", "<|endoftext|>"
SPECIAL = (END, START, "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>")


def tokenizer() -> Tokenizer:
    """Bytes and Whisper's special tokens, which its post-processor puts around a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    ids = made.get_vocab(with_added_tokens=True)
    around = [(text, ids[text]) for text in (START, "<|notimestamps|>", END)]
    made.post_processor = processors.TemplateProcessing(
        single=f"{START} <|notimestamps|> $A {END}", special_tokens=around
    )
    return made


def write_whisper(folder: Path) -> Path:
    """The folder, with weights, tokenizer, and the feature extractor's settings."""
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor
    from transformers import WhisperForConditionalGeneration as Whisper

    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    config = WhisperConfig(
        vocab_size=len(ids),
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=96,
        max_source_positions=ROWS,
        max_target_positions=TARGETS,
        init_std=0.3,
        pad_token_id=ids[END],
        bos_token_id=ids[END],
        eos_token_id=ids[END],
        decoder_start_token_id=ids[START],
        begin_suppress_tokens=None,
    )
    torch.manual_seed(17)
    model = Whisper(config).eval()
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=SECONDS)
    named = {"bos_token": END, "eos_token": END}
    return write_folder(folder, model, extractor, tokens, named=named)


@cache
def _theirs(folder: Path) -> tuple[Any, Any]:
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    return model, WhisperFeatureExtractor.from_pretrained(folder)


def said_by_transformers(folder: Path, prompt: str, sound: np.ndarray, count: int) -> list[int]:
    """So many tokens, the likeliest each, that come after a decoder's prompt. One forward pass for
    each: `generate` of this class adds rules of its own."""
    import torch

    model, extractor = _theirs(folder)
    ids = tokenizer().encode(prompt, add_special_tokens=False).ids
    mel = extractor(sound, sampling_rate=RATE, return_tensors="pt").input_features
    known = list(ids)
    with torch.no_grad():
        encoded = model.model.encoder(mel)
        for _ in range(count):
            given = torch.tensor([known])
            logits = model(encoder_outputs=encoded, decoder_input_ids=given).logits
            known.append(int(logits[0, -1].argmax()))
    return known[len(ids) :]
