"""A tiny Whisper with random weights as a folder of the hub, recordings, and what transformers
hears in them."""

from __future__ import annotations

import io
import json
import wave
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from testing.recordings import RATE
from tests.system.hub_folders import write_folder

SECONDS = 4
"""Seconds of a window."""
FRAMES = SECONDS * 100
TARGETS = 40
SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
]
TIMES = [f"<|{step * 0.02:.2f}|>" for step in range(SECONDS * 50 + 1)]


def tokenizer() -> Tokenizer:
    """Bytes, the special tokens, and times, which are none to the tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in TIMES])
    return made


def generation_config(ids: dict[str, int]) -> dict[str, Any]:
    """A generation_config.json as releases of Whisper have it."""
    return {
        "begin_suppress_tokens": [ids["Ġ"], ids["<|endoftext|>"]],
        "suppress_tokens": [ids["!"], ids["#"], *(ids[each] for each in SPECIAL[1:8])],
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|endoftext|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "max_initial_timestamp_index": 50,
        "max_length": TARGETS,
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": ids["<|en|>"], "<|de|>": ids["<|de|>"]},
        "task_to_id": {"translate": ids["<|translate|>"], "transcribe": ids["<|transcribe|>"]},
        "return_timestamps": False,
        "alignment_heads": [[1, 0], [1, 1]],
    }


def write_whisper(folder: Path, width: int = 48) -> Path:
    """The folder, with weights, tokenizer, feature extractor and generation config. width: of its
    rows."""
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor
    from transformers import WhisperForConditionalGeneration as Whisper

    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    config = WhisperConfig(
        vocab_size=len(ids),
        num_mel_bins=16,
        d_model=width,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        max_source_positions=FRAMES // 2,
        max_target_positions=TARGETS,
        init_std=0.3,
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        decoder_start_token_id=ids["<|startoftranscript|>"],
    )
    torch.manual_seed(3)
    model = Whisper(config).eval()
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=SECONDS)
    named = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    write_folder(folder, model, extractor, tokens, named=named)
    (folder / "generation_config.json").write_text(json.dumps(generation_config(ids)))
    return folder


@cache
def _theirs(folder: Path) -> tuple[Any, Any]:
    from transformers import WhisperFeatureExtractor
    from transformers import WhisperForConditionalGeneration as Whisper

    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    return Whisper.from_pretrained(folder).eval(), extractor


@dataclass(frozen=True)
class HeardSegment:
    """token_ids: timestamps included. ends: when each of them ends, seconds."""

    start: float
    end: float
    token_ids: list[int]
    ends: list[float]

    def text(self, end: int) -> list[int]:
        """Its tokens of text. end: the first id that is none."""
        return [token for token in self.token_ids if token < end]


def heard_by_transformers(
    folder: Path, file: bytes, language: str, task: str
) -> list[HeardSegment]:
    """The segments of a recording longer than a window, as its own sequential algorithm finds
    them."""
    import torch

    model, extractor = _theirs(folder)
    with wave.open(io.BytesIO(file)) as opened:
        raw = np.frombuffer(opened.readframes(opened.getnframes()), "<i2")
    given = extractor(
        (raw / 32768).astype(np.float32),
        sampling_rate=RATE,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    )
    with torch.no_grad():
        found = model.generate(
            **given,
            return_timestamps=True,
            return_segments=True,
            return_token_timestamps=True,
            language=language,
            task=task,
        )
    return [
        HeardSegment(
            float(each["start"]),
            float(each["end"]),
            each["tokens"].tolist(),
            each["token_timestamps"].tolist(),
        )
        for each in found["segments"][0]
    ]
