"""What is read of a hub folder that transcribes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock.model.sound_facts import LogMel
from penstock.model.transcription_facts import Alignment, TranscriptionFacts
from penstock.prepare.transcription import read_transcription
from tests.system.transcribing_models import FRAMES, TARGETS, generation_config, tokenizer

TOKENS = tokenizer()
IDS = TOKENS.get_vocab(with_added_tokens=True)
MEL = LogMel(sampling_rate=16_000, bins=16, n_fft=400, hop=160, seconds=4, row_frames=2)
MEDIA = MediaFacts(
    kinds={"audio": KindFacts(preparation=MEL, placeholder="", token="", token_id=1)}
)
CONFIG = {
    "architectures": ["WhisperForConditionalGeneration"],
    "vocab_size": len(IDS),
    "max_source_positions": FRAMES // 2,
    "max_target_positions": TARGETS,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
}


def read(folder: Path, generation: dict[str, Any] | None, **config: Any) -> Any:
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    fields = Fields({**CONFIG, **config}, "config.json")
    return read_transcription(folder, fields, TOKENS.to_str().encode(), MEDIA)


def test_a_release_is_read(tmp_path: Path) -> None:
    facts = read(tmp_path, generation_config(IDS))
    assert facts == TranscriptionFacts(
        start=IDS["<|startoftranscript|>"],
        end=IDS["<|endoftext|>"],
        no_timestamps=IDS["<|notimestamps|>"],
        first_timestamp=IDS["<|0.00|>"],
        previous=IDS["<|startofprev|>"],
        no_speech=IDS["<|nospeech|>"],
        transcribe=IDS["<|transcribe|>"],
        translate=IDS["<|translate|>"],
        languages={"en": IDS["<|en|>"], "de": IDS["<|de|>"]},
        suppressed=tuple(generation_config(IDS)["suppress_tokens"]),
        suppressed_first=(IDS["Ġ"], IDS["<|endoftext|>"]),
        max_initial=50,
        max_tokens=TARGETS,
        window_frames=FRAMES,
        frames_per_second=100,
        timestamp_frames=2,
        alignment=Alignment(heads=((1, 0), (1, 1))),
    )
    assert facts.window_seconds == 4.0


def test_heads_that_follow_the_sound(tmp_path: Path) -> None:
    stated = {**generation_config(IDS), "alignment_heads": [[2, 1], [0, 0]]}
    found = read(tmp_path, stated, median_filter_width=9).alignment
    assert found == Alignment(heads=((0, 0), (2, 1)), filter_width=9)
    for wrong in ([[3, 0]], [[0, 2]], [0, 1], {"a": 1}, [[0, 0], [0, 0]], [["0", 0]]):
        with pytest.raises(UnsupportedModel, match="pairs of a layer below 3 and a head below 2"):
            read(tmp_path, {**stated, "alignment_heads": wrong})
    with pytest.raises(UnsupportedModel, match="median_filter_width is 4"):
        read(tmp_path, stated, median_filter_width=4)


def test_the_tokenizer_has_what_the_generation_config_lacks(tmp_path: Path) -> None:
    facts = read(tmp_path, None)
    assert facts.first_timestamp == IDS["<|0.00|>"]
    assert (facts.languages, facts.translate, facts.transcribe) == ({}, None, None)
    assert facts.suppressed == ()
    assert facts.alignment == Alignment(heads=((1, 0), (1, 1), (2, 0), (2, 1)))


def test_a_model_of_one_language(tmp_path: Path) -> None:
    facts = read(tmp_path, {**generation_config(IDS), "is_multilingual": False})
    assert (facts.languages, facts.translate, facts.transcribe) == ({}, None, None)


def test_others_dont_transcribe(tmp_path: Path) -> None:
    assert read(tmp_path, None, architectures=["Qwen2AudioForConditionalGeneration"]) is None
    ends_in_time = {**generation_config(IDS), "eos_token_id": IDS["<|0.02|>"]}
    assert read(tmp_path, ends_in_time) is None


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("suppress_tokens", [10**6], "no token id below"),
        ("suppress_tokens", "all", "no list"),
        ("suppress_tokens", [1] * 1025, "at most 1024"),
        ("lang_to_id", {"<|en|>": -3}, "lang_to_id has -3"),
        ("lang_to_id", [], None),
        ("no_timestamps_token_id", True, "no token id"),
        ("max_initial_timestamp_index", -1, "0 or more"),
    ],
)
def test_odd_values(tmp_path: Path, key: str, value: Any, complaint: str | None) -> None:
    generation = {**generation_config(IDS), key: value}
    if complaint is None:
        read(tmp_path, generation)
        return
    with pytest.raises(UnsupportedModel, match=complaint):
        read(tmp_path, generation)
