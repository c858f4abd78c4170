"""What Granite Speech's folder says of its sounds, and what is said of settings that can't be
followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec
from penstock.model.media_facts import PairedMel
from penstock.prepare.hub_config import read_config
from penstock.prepare.media import read_media
from tests.shared.media.processors import tokenizer
from tests.shared.test_audio_configs import GRANITE_SPEECH

SAID: dict[str, Any] = {
    "feature_extractor_type": "GraniteSpeechFeatureExtractor",
    "feature_size": 80,
    "melspec_kwargs": {
        "hop_length": 160,
        "n_fft": 512,
        "n_mels": 80,
        "sample_rate": 16000,
        "win_length": 400,
    },
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "GraniteSpeechProcessor",
    "projector_downsample_rate": 5,
    "projector_window_size": 15,
    "return_attention_mask": True,
    "sampling_rate": 16000,
}


def read(folder: Path, said: dict[str, Any], name: str = "preprocessor_config.json") -> Any:
    words = tokenizer()
    values = GRANITE_SPEECH | {"audio_token_index": words.token_to_id("<|audio|>")}
    config = Fields(values, "config.json")
    audio = read_config(config).audio
    assert isinstance(audio, AudioSpec)
    (folder / name).write_text(json.dumps(said))
    return read_media(folder, config, words.to_str().encode(), audio)


@pytest.mark.parametrize("nested", [False, True])
def test_a_release_and_what_transformers_saves(nested: bool, tmp_path: Path) -> None:
    media = read(tmp_path, SAID)
    if nested:
        media = read(tmp_path, {"audio_processor": SAID}, "processor_config.json")
    (facts,) = media.kinds.values()
    assert facts.placeholder == facts.token == "<|audio|>"
    assert facts.preparation == PairedMel(
        sampling_rate=16_000,
        bins=80,
        frame=400,
        n_fft=512,
        hop=160,
        window=15,
        queries=3,
        seconds=30,
    )
    bare = {"feature_extractor_type": SAID["feature_extractor_type"]}
    assert read(tmp_path, bare) == media


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sampling_rate": 8000}, "16000"),
        ({"projector_window_size": 20}, "projector_window_size"),
        ({"projector_downsample_rate": 3}, "projector_downsample_rate"),
        ({"padding_value": 1.0}, "padding_value"),
        ({"loudness": 2}, "loudness is not known here"),
        ({"melspec_kwargs": {"n_mels": 64}}, "half the encoder's input_dim"),
        ({"melspec_kwargs": {"n_fft": 300}}, "no less than win_length"),
        ({"melspec_kwargs": {"hop_length": 0}}, "no less than win_length"),
        ({"melspec_kwargs": {"sample_rate": 8000}}, "sample_rate"),
        ({"melspec_kwargs": {"power": 1.0}}, "power is not known here"),
    ],
)
def test_settings_that_cant_be_followed(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        read(tmp_path, SAID | changes)
