"""What the folders of Granite Speech, Gemma 3n and Gemma 4 12B say of their sounds, and what is
said of settings that can't be followed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from transformers import Gemma4UnifiedAudioFeatureExtractor
from transformers.models.gemma3n.processing_gemma3n import Gemma3nProcessor

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedImages
from penstock.forms.pixels import Pixels
from penstock.model.audio_spec import AudioSpec
from penstock.model.sound_facts import EmphasisedMel, PairedMel, Waveform
from penstock.prepare.hub_config import read_config
from penstock.prepare.media import read_media
from tests.shared.families.release_configs import release
from tests.shared.families.test_audio_configs import GEMMA3N
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.releases.reading import RELEASES

GRANITE_SPEECH = release("audio", "granite-speech-3.3-2b")

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
    return read_folder(
        folder, said, GRANITE_SPEECH | {"audio_token_index": words.token_to_id("<|audio|>")}, name
    )


def read_folder(
    folder: Path,
    said: dict[str, Any],
    values: dict[str, Any],
    name: str = "preprocessor_config.json",
) -> Any:
    words = tokenizer()
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
def test_settings_of_sounds_that_cant_be_followed_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        read(tmp_path, SAID | changes)


OF_GEMMA: dict[str, Any] = {
    "crop_size": None,
    "data_format": "channels_first",
    "dither": 0.0,
    "do_convert_rgb": None,
    "do_normalize": False,
    "do_rescale": True,
    "do_resize": True,
    "feature_extractor_type": "Gemma3nAudioFeatureExtractor",
    "feature_size": 128,
    "fft_length": 1024,
    "fft_overdrive": True,
    "frame_length": 512,
    "hop_length": 160,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "SiglipImageProcessorFast",
    "image_seq_length": 256,
    "input_scale_factor": 1.0,
    "max_frequency": 7600.0,
    "mel_floor": 1e-05,
    "min_frequency": 125.0,
    "padding_side": "right",
    "padding_value": 0.0,
    "per_bin_mean": None,
    "per_bin_stddev": None,
    "preemphasis": 0.97,
    "preemphasis_htk_flavor": True,
    "processor_class": "Gemma3nProcessor",
    "resample": 2,
    "rescale_factor": 1 / 255,
    "return_attention_mask": False,
    "sampling_rate": 16000,
    "size": {"height": 768, "width": 768},
}
"""Written from memory: no release's file could be had."""
TOKENS = {"audio_token_id": "<|audio|>", "boa_token_id": "<|audio>", "eoa_token_id": "<audio|>"}


def of_gemma(folder: Path, said: dict[str, Any]) -> Any:
    """Reads the settings of a model whose towers' vocabularies begin with the tokens of sounds."""
    words = tokenizer()
    ids = {key: words.token_to_id(text) for key, text in TOKENS.items()}
    first = min(ids.values())
    values = GEMMA3N | ids | {"vision_config": None}
    values["audio_config"] = GEMMA3N["audio_config"] | {"vocab_offset": first}
    own = {"vocab_size": first + 128, "vocab_size_per_layer_input": first}
    values["text_config"] = GEMMA3N["text_config"] | own
    return read_folder(folder, said, values)


def test_gemma_3n_and_the_prompt_of_its_processor(tmp_path: Path) -> None:
    media = of_gemma(tmp_path, OF_GEMMA)
    (facts,) = media.kinds.values()
    assert facts.preparation == EmphasisedMel(
        sampling_rate=16_000,
        bins=128,
        lowest=125.0,
        highest=7600.0,
        frame=512,
        hop=160,
        n_fft=1024,
        emphasis=0.97,
        floor=1e-5,
        multiple=128,
        seconds=30,
        rows=189,
    )
    words = SimpleNamespace(
        audio_token=facts.token,
        audio_token_id=0,
        boa_token=TOKENS["boa_token_id"],
        eoa_token=TOKENS["eoa_token_id"],
        image_token="",
        image_token_id=0,
        boi_token="",
        eoi_token="",
    )
    theirs = Gemma3nProcessor.__new__(Gemma3nProcessor)
    with patch.object(Gemma3nProcessor.__mro__[1], "__init__", lambda *_given, **_named: None):
        Gemma3nProcessor.__init__(theirs, None, None, words)
    placed = facts.before + facts.token * facts.preparation.rows + facts.behind
    # The last row is the embedding of the token that ends a sound.
    assert placed == theirs.full_audio_sequence.replace(words.eoa_token, facts.token)
    bare = {"feature_extractor_type": OF_GEMMA["feature_extractor_type"]}
    assert of_gemma(tmp_path, bare) == media


def test_a_file_about_sounds_and_pictures(tmp_path: Path) -> None:
    """Gemma 3n's releases have one."""
    words = tokenizer()
    texts = {"boi_token_id": "<start_of_image>", "image_token_id": "<image_soft_token>"}
    ids = {key: words.token_to_id(text) for key, text in texts.items()}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(OF_GEMMA))
    said = Fields(GEMMA3N | ids, "config.json")
    media = read_media(tmp_path, said, words.to_str().encode())
    assert media is not None
    (facts,) = media.kinds.values()
    pixels = Pixels(resample=2, rescale=1 / 255)
    assert facts.preparation == FixedImages(pixels=pixels, height=768, width=768, rows=257)
    assert (facts.before, facts.behind) == ("\n\n<start_of_image>", "\n\n")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preemphasis_htk_flavor": False}, "preemphasis_htk_flavor"),
        ({"preemphasis": 1.5}, "a share, 0 to 1"),
        ({"dither": 0.1}, "dither"),
        ({"per_bin_mean": [0.0] * 128}, "per_bin_mean is not known here"),
        ({"feature_size": 80}, "128, what the tower hears"),
        ({"hop_length_ms": 9.0}, "30 s become 188 vectors at most"),
        ({"mel_floor": 0.0}, "mel_floor above 0"),
        ({"loudness": 2}, "loudness is not known here"),
    ],
)
def test_settings_of_gemma_3n_that_cant_be_followed(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        of_gemma(tmp_path, OF_GEMMA | changes)


def of_12b(folder: Path, said: dict[str, Any], **changes: Any) -> Any:
    """changes: of what config.json says of sounds."""
    words, values = tokenizer(), RELEASES["google/gemma-4-12B"]["config"]
    ids = {"audio_token_id": "<|audio|>", "boa_token_id": "<|audio>", "eoa_token_index": "<audio|>"}
    values = values | {key: words.token_to_id(text) for key, text in ids.items()}
    values["audio_config"] = values["audio_config"] | changes
    return read_folder(folder, {"feature_extractor": said}, values, "processor_config.json")


def test_gemma_4_12b(tmp_path: Path) -> None:
    said = Gemma4UnifiedAudioFeatureExtractor().to_dict()
    (facts,) = of_12b(tmp_path, said).kinds.values()
    assert facts.preparation == Waveform(sampling_rate=16_000, frame=640)
    assert (facts.before, facts.placeholder, facts.behind) == ("<|audio>", "<|audio|>", "<audio|>")
    bare = {"feature_extractor_type": said["feature_extractor_type"]}
    assert of_12b(tmp_path, bare).kinds["audio"] == facts
    assert of_12b(tmp_path, {"feature_extractor_type": "WhisperFeatureExtractor"}) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"audio_samples_per_token": 320}, "audio_samples_per_token is 320"),
        ({"feature_size": 128}, "feature_size is 128"),
        ({"padding_value": 1.0}, "padding_value"),
        ({"sampling_rate": 0}, "1 to 384000 Hz"),
        ({"loudness": 2}, "loudness is not known here"),
    ],
)
def test_settings_of_gemma_4_12b_that_cant_be_followed(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        of_12b(tmp_path, Gemma4UnifiedAudioFeatureExtractor().to_dict() | changes)


def test_frames_of_another_length_than_the_model_hears(tmp_path: Path) -> None:
    sizes = dict.fromkeys(("audio_embed_dim", "audio_samples_per_token"), 320)
    sizes |= dict.fromkeys(("hidden_size", "output_proj_dims"), 320)
    bare = {"feature_extractor_type": "Gemma4UnifiedAudioFeatureExtractor"}
    with pytest.raises(UnsupportedModel, match="audio_samples_per_token is 640"):
        of_12b(tmp_path, bare, **sizes)
    told = bare | {"audio_samples_per_token": 320}
    facts = of_12b(tmp_path, told, **sizes).kinds["audio"]
    assert facts.preparation == Waveform(sampling_rate=16_000, frame=320)
