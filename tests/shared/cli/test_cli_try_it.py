"""The line that `penstock serve` prints: what it asks, of which models, with or without a key."""

from __future__ import annotations

import json
import shlex

import msgspec
import pytest

from penstock.cli.serve import (
    CHAT,
    CLASSIFICATION,
    COMPLETION,
    EMBEDDING,
    TRANSCRIPTION,
    curl_line,
    example_for,
)
from penstock.config.settings import ModelSettings
from penstock.model.media_facts import MediaFacts
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import GenerationDefaults, PreparedModel, WeightFiles
from penstock.model.transcription_facts import TranscriptionFacts
from testing.model_configs import llama_config

VECTORS = PoolingConfig(mode="mean", normalize=True, size=8)
CLASSES = PoolingConfig(mode="cls", normalize=False, size=8, labels=("good", "bad"))


def model(*, template: bool = False, pooling: PoolingConfig | None = None) -> PreparedModel:
    config = llama_config(
        architecture="llama", vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=1,
        num_heads=1, num_kv_heads=1, head_dim=8, max_position=64, rms_norm_eps=1e-5,
        rope_theta=1e4,
    )  # fmt: skip
    return PreparedModel(
        format_version=1,
        name="m",
        source="m",
        config=config,
        generation=GenerationDefaults(),
        weights=WeightFiles(format="gguf", files=(), dtype="float32"),
        digest="",
        has_chat_template=template,
        pooling=pooling,
    )


@pytest.mark.parametrize(
    ("served", "settings", "example"),
    [
        (model(template=True), {}, CHAT),
        (model(), {}, COMPLETION),
        (model(), {"chat_template": "{{ 1 }}"}, CHAT),
        (model(pooling=VECTORS), {}, EMBEDDING),
        (model(template=True, pooling=VECTORS), {"runner": "generate"}, CHAT),
        (model(template=True), {"runner": "pooling"}, EMBEDDING),
        (model(template=True), {"convert": "embed"}, EMBEDDING),
        (model(pooling=CLASSES), {}, CLASSIFICATION),
        (model(pooling=CLASSES), {"convert": "embed"}, EMBEDDING),
    ],
)
def test_each_kind_of_model_is_asked_what_it_can_answer(served, settings, example) -> None:
    assert example_for(served, ModelSettings(**settings)) is example


def test_a_shell_reads_the_line_as_it_is_meant() -> None:
    words = shlex.split(curl_line("http://h:1", "it's"))
    assert words[:3] == ["curl", "-N", "http://h:1/v1/chat/completions"]
    assert json.loads(words[-1]) == {"model": "it's", **CHAT.body}
    assert "authorization" not in " ".join(words)
    keyed = curl_line("http://h:1", "m", EMBEDDING, has_keys=True)
    assert '-H "authorization: Bearer $PENSTOCK_API_KEY"' in keyed


def test_a_model_that_transcribes_is_sent_a_recording() -> None:
    facts = TranscriptionFacts(
        start=1, end=2, no_timestamps=3, first_timestamp=4, max_tokens=5, window_frames=6,
        frames_per_second=7, timestamp_frames=8,
    )  # fmt: skip
    served = msgspec.structs.replace(model(), media=MediaFacts(kinds={}, transcription=facts))
    assert example_for(served, ModelSettings()) is TRANSCRIPTION
    words = shlex.split(curl_line("http://127.0.0.1:8000", "m", TRANSCRIPTION, has_keys=True))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/audio/transcriptions"]
    assert words[-4:-2] == ["-H", "authorization: Bearer $PENSTOCK_API_KEY"]
    assert words[-2:] == ["-F", "file=@recording.wav"]
