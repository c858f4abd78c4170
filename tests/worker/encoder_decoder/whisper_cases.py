"""Tiny Whisper models with random weights: transformers' own, and ours of the same files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from penstock.formats.fields import Fields
from penstock.formats.weight_files import find_safetensors
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.hub_config import read_config
from penstock_worker.media.hearing import AudioModel, open_audio_tower
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import open_weights
from tests.worker.cpu_model import CPUModel

START = 190
"""decoder_start_token_id."""
ROWS = 93
"""Rows of the encoder's output: not a multiple of a block."""
TARGETS = 90
"""Positions of the decoder."""
SETTINGS: dict[str, Any] = {
    "vocab_size": 199,
    "num_mel_bins": 12,
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 80,
    "max_source_positions": ROWS,
    "max_target_positions": TARGETS,
    "init_std": 0.25,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": START,
}
CASES: dict[str, dict[str, Any]] = {
    "whisper": {},
    "whisper-few-wide-heads": {
        "decoder_attention_heads": 2,
        "d_model": 96,
        "activation_function": "gelu_new",
        "tie_word_embeddings": False,
    },
}


def make_theirs(case: str) -> Any:
    """transformers' model with random weights; biases and norms too, which start at 0 and 1."""
    import transformers

    torch.manual_seed(5)
    config = transformers.WhisperConfig(**SETTINGS | CASES[case])
    config._attn_implementation = "eager"
    model: Any = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.normal_(1, 0.3)
    return model


@dataclass(frozen=True)
class Ours:
    """Our model, read from the files that transformers wrote."""

    config: ModelConfig
    decoder: DecoderModel
    tower: AudioModel
    weights: WeightFiles
    folder: TemporaryDirectory[str]
    """In which they lie, as long as this object lives."""

    @property
    def cpu(self) -> CPUModel:
        """The decoder on the CPU kernels."""
        return CPUModel(self.config, self.weights, "float32", positions=ROWS + TARGETS)


def saved(model: Any, folder: Path) -> tuple[ModelConfig, WeightFiles]:
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = read_config(Fields(json.loads(path.read_text()), str(path)))
    files = tuple(map(str, find_safetensors(folder)))
    return config, WeightFiles(format="safetensors", files=files, dtype="float32")


@cache
def both(case: str) -> tuple[Any, Ours]:
    """Made once for all tests of a file."""
    theirs = make_theirs(case)
    folder = TemporaryDirectory()
    config, files = saved(theirs, Path(folder.name))
    weights = open_weights(files, config, torch.float32)
    decoder = DecoderModel(config, weights, ROWS + TARGETS)
    hears = open_audio_tower(files, torch.float32)
    return theirs, Ours(config, decoder, AudioModel(config, hears), files, folder)
