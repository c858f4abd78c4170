"""Sampling values for silent requests: where they come from, and what is said of bad ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import ModelSettings
from penstock.errors import StartupError, UnsupportedModel
from penstock.model.prepared_model import GenerationDefaults
from penstock.prepare import load_manifest, prepare
from penstock.request.generation_config import filled, generation_defaults, sampling_defaults
from penstock.request.sampling_params import SamplingParams
from testing.tiny_models import LLAMA_CONFIG, write_gguf, write_hub_folder

OWN = GenerationDefaults(
    eos_token_ids=(2,), bos_token_id=1, temperature=0.6, top_k=20, max_new_tokens=50
)


def stated(**settings: str) -> dict[str, Any]:
    """What holds with these settings. The token ids always stay."""
    found = generation_defaults(OWN, ModelSettings(**settings))
    assert (found.eos_token_ids, found.bos_token_id) == ((2,), 1)
    return sampling_defaults(found)


def write(folder: Path, values: object) -> str:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return str(folder)


def test_the_models_own_values_hold_by_default() -> None:
    assert stated() == {"temperature": 0.6, "top_k": 20, "max_tokens": 50}
    assert SamplingParams(**stated()).max_tokens == 50


def test_vllm_means_the_apis_defaults() -> None:
    assert stated(generation_config="vllm") == {}


def test_a_folder_takes_the_place_of_the_models_values(tmp_path: Path) -> None:
    values = {"top_p": 0.5, "repetition_penalty": 1.1, "eos_token_id": 9, "do_sample": True}
    folder = write(tmp_path, values)
    assert stated(generation_config=folder) == {"top_p": 0.5, "repetition_penalty": 1.1}
    assert stated(generation_config=f"{folder}/generation_config.json") == stated(
        generation_config=folder
    )


def test_an_override_comes_before_all_others(tmp_path: Path) -> None:
    override = '{"temperature": 0, "top_k": null}'
    assert stated(override_generation_config=override) == {"temperature": 0, "max_tokens": 50}
    folder = write(tmp_path, {"temperature": 0.9, "min_p": 0.1})
    both = stated(generation_config=folder, override_generation_config=override)
    assert both == {"temperature": 0, "min_p": 0.1}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("{", "--override-generation-config is not readable JSON"),
        ("[1]", "is no JSON object, like"),
        ('{"temprature": 1}', "temprature can't be set; allowed are temperature, top_p, min_p"),
        ('{"temperature": "hot"}', "temperature is 'hot'; a number is needed"),
        ('{"temperature": -1}', "temperature must be a number in [0, 100], not -1"),
        ('{"top_k": 1.5}', "top_k is 1.5; a whole number is needed"),
    ],
)
def test_bad_overrides_say_what_is_allowed(override: str, words: str) -> None:
    with pytest.raises(StartupError, match=re.escape(words)):
        stated(override_generation_config=override)


def test_bad_files_say_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="allowed are auto, vllm, or a folder with a"):
        stated(generation_config=str(tmp_path))
    write(tmp_path, {"top_p": 0})
    with pytest.raises(StartupError, match=re.escape("top_p must be a number in (0, 1], not 0")):
        stated(generation_config=str(tmp_path))


def test_advice_fills_only_what_is_not_stated() -> None:
    both = filled(OWN, GenerationDefaults(eos_token_ids=(7,), temperature=0.2, top_p=0.9))
    assert (both.temperature, both.top_p, both.eos_token_ids) == (0.6, 0.9, (2,))


def prepared(folder: Path, said: object, **changes: Any) -> GenerationDefaults:
    """Reads a hub folder whose generation_config.json is `said`. changes: to its config.json."""
    hub = write_hub_folder(
        folder / "hub", generation_config={"suppress_tokens": said}, config=LLAMA_CONFIG | changes
    )
    return load_manifest(prepare(str(hub), cache_dir=folder / "cache")).generation


def test_ids_that_no_output_holds(tmp_path: Path) -> None:
    """They hold whatever the settings say; those that no token has mean nothing."""
    own = prepared(tmp_path, [7, 5, 7, -1, 10**6])
    assert own.suppress_tokens == (5, 7)
    for settings in ({"generation_config": "vllm"}, {"override_generation_config": "{}"}):
        assert generation_defaults(own, ModelSettings(**settings)).suppress_tokens == (5, 7)
    assert "suppress_tokens" not in sampling_defaults(own)


def test_none_are_said(tmp_path: Path) -> None:
    assert prepared(tmp_path, None).suppress_tokens == ()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("all", "suppress_tokens"),
        ([0] * 1025, "1025 ids; 1024 at most"),
        (list(range(LLAMA_CONFIG["vocab_size"])), "suppress_tokens has all .* ids"),
    ],
)
def test_lists_of_such_ids_that_are_refused(said: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        prepared(tmp_path, said)


def test_ids_that_a_gguf_file_names(tmp_path: Path) -> None:
    key = "tokenizer.ggml.suppress_tokens"
    path = write_gguf(tmp_path / "m.gguf", adjust=lambda writer: writer.add_array(key, [9, 3]))
    own = load_manifest(prepare(str(path), cache_dir=tmp_path / "cache")).generation
    assert own.suppress_tokens == (3, 9)
