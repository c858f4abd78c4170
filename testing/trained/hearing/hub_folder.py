"""The tiny Whisper's vocabulary and settings, and its folder in the hub's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from testing.trained.hearing.synthesiser import DIGITS

SECONDS = 3
"""Seconds of a window."""
FRAMES = 100 * SECONDS
BINS = 40
TARGETS = 40
END = "<|endoftext|>"
START = "<|startoftranscript|>"
SPECIAL = [
    END,
    START,
    "<|en|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
]
TIMES = [f"<|{step * 0.02:.2f}|>" for step in range(SECONDS * 50 + 1)]


def tokenizer() -> Tokenizer:
    """Bytes, a token for each digit with a blank before it, special tokens, and times."""
    vocabulary = {
        letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    merges: list[tuple[str, str]] = []
    for word in DIGITS:
        made = "Ġ"
        for letter in word:
            if made + letter not in vocabulary:
                vocabulary[made + letter] = len(vocabulary)
                merges.append((made, letter))
            made += letter
    tokens = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens(
        [AddedToken(each, special=True, normalized=False) for each in SPECIAL]
    )
    tokens.add_tokens([AddedToken(each, special=False, normalized=False) for each in TIMES])
    return tokens


def ids_of(tokens: Tokenizer) -> dict[str, int]:
    return dict(tokens.get_vocab(with_added_tokens=True))


def config(ids: dict[str, int]) -> WhisperConfig:
    return WhisperConfig(
        vocab_size=len(ids),
        num_mel_bins=BINS,
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=192,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=192,
        max_source_positions=FRAMES // 2,
        max_target_positions=TARGETS,
        bos_token_id=ids[END],
        eos_token_id=ids[END],
        pad_token_id=ids[END],
        decoder_start_token_id=ids[START],
    )


def generation_config(ids: dict[str, int]) -> dict[str, Any]:
    """A generation_config.json as releases of Whisper have it."""
    return {
        "begin_suppress_tokens": [ids["Ġ"], ids[END]],
        "suppress_tokens": [ids[each] for each in SPECIAL[1:7]],
        "bos_token_id": ids[END],
        "eos_token_id": ids[END],
        "pad_token_id": ids[END],
        "decoder_start_token_id": ids[START],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "max_length": TARGETS,
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": ids["<|en|>"]},
        "task_to_id": {"translate": ids["<|translate|>"], "transcribe": ids["<|transcribe|>"]},
        "return_timestamps": False,
        # Of all sets of three, the one that is right most often about when digits are spoken.
        "alignment_heads": [[0, 0], [0, 2], [1, 1]],
    }


def save(model: WhisperForConditionalGeneration, tokens: Tokenizer, folder: Path) -> None:
    """Weights, tokenizer, feature extractor and generation config."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=BINS, chunk_length=SECONDS).save_pretrained(folder)
    written = json.dumps(generation_config(ids_of(tokens)), indent=1)
    (folder / "generation_config.json").write_text(written + "\n")
    tokens.save(str(folder / "tokenizer.json"))
    named = {"bos_token": END, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(named) + "\n")
