"""Positions beyond those that a model was trained with: as cards write yarn, and by flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import ModelSettings
from penstock.errors import StartupError, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.llm.keywords import engine_config
from penstock.model.config import ModelConfig
from penstock.prepare import load_manifest, prepare
from penstock.prepare.from_hub_folder import read_head
from penstock.prepare.overrides import overrides_of
from testing.tiny_models import LLAMA_CONFIG, write_gguf, write_hub_folder

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
"""As Qwen's cards have users add it, beside max_position_embeddings of the same number."""
PLAIN = {**LLAMA_CONFIG, "max_position_embeddings": 128}


def config_of(source: Path, cache: Path, **settings: Any) -> ModelConfig:
    overrides = overrides_of(ModelSettings(**settings))
    manifest = load_manifest(prepare(str(source), cache_dir=cache, overrides=overrides))
    assert isinstance(manifest.config, ModelConfig)
    return manifest.config


def with_yarn(writer: Any) -> None:
    writer.add_string("llama.rope.scaling.type", "yarn")
    writer.add_float32("llama.rope.scaling.factor", 4.0)
    writer.add_uint32("llama.rope.scaling.original_context_length", 128)


def test_yarn_reaches_its_factor_times_the_original_length(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path / "hub", config={**PLAIN, "rope_scaling": YARN})
    file = write_gguf(tmp_path / "yarn.gguf", adjust=with_yarn)
    for source in (folder, file):
        assert config_of(source, tmp_path / "cache").max_position == 512


def test_so_does_a_head_that_drafts() -> None:
    """It would stop where it was trained to, in the middle of what its model serves."""
    stated = {**PLAIN, "num_hidden_layers": 1, "target_hidden_size": 64, "rope_scaling": YARN}
    assert read_head(Fields(stated, "config.json")).max_position == 512


def test_a_longer_length_that_is_stated_stays(tmp_path: Path) -> None:
    config = {**PLAIN, "max_position_embeddings": 4096, "rope_scaling": YARN}
    folder = write_hub_folder(tmp_path / "hub", config=config)
    assert config_of(folder, tmp_path / "cache").max_position == 4096


@pytest.mark.parametrize("form", ["folder", "parameters", "gguf"])
def test_the_flag_says_what_the_file_would(form: str, tmp_path: Path) -> None:
    """Against the same, written into the files."""
    if form == "gguf":
        plain, stretched = write_gguf(tmp_path / "a.gguf"), tmp_path / "b.gguf"
        write_gguf(stretched, adjust=with_yarn)
    else:
        own: dict[str, Any] = dict(PLAIN)
        if form == "parameters":
            own["rope_parameters"] = {"rope_type": "default", "rope_theta": 5000.0}
        said = {**own, "rope_scaling": YARN}
        if form == "parameters":
            said = {**own, "rope_parameters": {"rope_theta": 5000.0, **YARN}}
        plain = write_hub_folder(tmp_path / "a", config=own)
        stretched = write_hub_folder(tmp_path / "b", config=said)
    cache, text = tmp_path / "cache", json.dumps(YARN)
    by_flag = config_of(plain, cache, rope_scaling=text)
    assert by_flag == config_of(stretched, cache)
    assert by_flag.max_position == 512
    assert config_of(plain, cache, hf_overrides=json.dumps({"rope_scaling": YARN})) == by_flag
    assert config_of(plain, cache).max_position == 128, "the folder without the flag is another"


def test_a_digest_knows_it(tmp_path: Path) -> None:
    plain = write_gguf(tmp_path / "a.gguf")
    overrides = overrides_of(ModelSettings(rope_scaling=json.dumps(YARN)))
    digests = {
        load_manifest(prepare(str(plain), cache_dir=tmp_path / "c", overrides=each)).digest
        for each in ("", overrides)
    }
    assert len(digests) == 2


def test_linear_scaling_by_flag_reaches_as_far(tmp_path: Path) -> None:
    scaling = json.dumps({"type": "linear", "factor": 2})
    folder = write_hub_folder(tmp_path / "hub", config=PLAIN)
    file = write_gguf(tmp_path / "a.gguf")
    for source in (folder, file):
        found = config_of(source, tmp_path / "cache", rope_scaling=scaling)
        assert found.max_position == 256
        assert found.ropes[0].scaling is not None
        assert found.ropes[0].scaling.factor == 2


def test_other_settings_of_config_json(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path / "hub", config=PLAIN)
    text = json.dumps({"max_position_embeddings": 64, "rope_theta": 7.0})
    found = config_of(folder, tmp_path / "cache", hf_overrides=text)
    assert (found.max_position, found.ropes[0].theta) == (64, 7.0)


def test_a_wrong_rope_scaling_is_an_error_that_says_why(tmp_path: Path) -> None:
    for wrong in ("yarn", "[]"):
        with pytest.raises(StartupError, match="a JSON object is needed"):
            overrides_of(ModelSettings(rope_scaling=wrong))
    with pytest.raises(StartupError, match="another one"):
        overrides_of(ModelSettings(rope_scaling='{"a": 1}', hf_overrides='{"rope_scaling": {}}'))
    file = write_gguf(tmp_path / "a.gguf")
    with pytest.raises(UnsupportedModel, match="vocab_size can't be replaced in a GGUF file"):
        config_of(file, tmp_path / "cache", hf_overrides='{"vocab_size": 3}')


def test_the_library_takes_them_as_vllm_does() -> None:
    config = engine_config({"hf_overrides": {"rope_scaling": YARN}})
    assert json.loads(overrides_of(config.model)) == {"rope_scaling": YARN}
