"""Folders in the hub's format as prepared models, and models found by their hub id."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.model.config import EncoderConfig
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import PreparedModel
from penstock.model.rope_spec import RopeScaling
from penstock.prepare import load_manifest, prepare
from testing.model_configs import llama_config
from testing.tiny_models import (
    CHATML,
    LLAMA_CONFIG,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    with_bos,
    write_hub_folder,
)
from tests.shared.hub.test_hub_cache import SCRIPT

pytestmark = pytest.mark.timeout(240)


def _prepare(folder: Path) -> PreparedModel:
    return load_manifest(prepare(str(folder), cache_dir=str(folder.parent / "cache")))


def test_everything_in_the_folder_is_found(tmp_path: Path) -> None:
    folder = write_hub_folder(
        tmp_path / "my-model",
        config={**LLAMA_CONFIG, "eos_token_id": 0, "rope_theta": 5000.0},
        generation_config={"eos_token_id": [2, 1], "temperature": 0.6, "top_p": 0.9, "top_k": 20},
    )
    prepared = prepare(str(folder), cache_dir=str(tmp_path / "cache"))
    manifest = load_manifest(prepared)
    assert manifest.name == "my-model"
    assert manifest.source == str(folder)
    assert manifest.weights.files == (str(folder / "model.safetensors"),)
    assert manifest.weights.dtype == "float32"
    assert manifest.generation.eos_token_ids == (2, 1, 0)
    assert manifest.generation.temperature == 0.6
    assert manifest.generation.top_p == 0.9
    assert manifest.generation.top_k == 20
    assert manifest.generation.min_p is None
    assert manifest.generation.repetition_penalty is None
    assert not manifest.add_bos
    assert (prepared / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (prepared / "chat_template.jinja").read_text() == CHATML
    assert manifest.config == llama_config(
        architecture="llama",
        vocab_size=700,
        hidden_size=24,
        intermediate_size=48,
        num_layers=1,
        num_heads=3,
        num_kv_heads=1,
        head_dim=8,
        max_position=128,
        rms_norm_eps=1e-5,
        rope_theta=5000.0,
    )


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Mistral"])
def test_configs_as_transformers_writes_them(tmp_path: Path, kind: str) -> None:
    import transformers

    their_class = getattr(transformers, f"{kind}Config")
    sizes = {
        "vocab_size": 700,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1234.0},
        "architectures": [f"{kind}ForCausalLM"],
    }
    if kind == "Mistral":
        sizes["sliding_window"] = None
    theirs = their_class(**sizes)
    folder = write_hub_folder(tmp_path / "m")
    theirs.save_pretrained(folder)
    config = _prepare(folder).config
    assert config.architecture == kind.lower()
    assert config.hidden_size == theirs.hidden_size
    assert config.intermediate_size == theirs.intermediate_size
    assert config.num_layers == theirs.num_hidden_layers
    assert config.num_heads == theirs.num_attention_heads
    assert config.num_kv_heads == theirs.num_key_value_heads
    assert config.head_dim == theirs.head_dim
    assert config.max_position == theirs.max_position_embeddings
    assert config.norm.eps == theirs.rms_norm_eps
    assert config.ropes[0].theta == 1234.0
    assert config.ropes[0].scaling is None
    assert config.tie_word_embeddings
    assert config.layers[0].attention.qkv_bias == (kind == "Qwen2")
    assert (config.layers[0].attention.norm == "head") == (kind == "Qwen3")
    assert not config.layers[0].attention.output_bias


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPE: dict[str, tuple[dict[str, Any], float, RopeScaling | None]] = {
    "old, none": ({"rope_theta": 7.0, "rope_scaling": None}, 7.0, None),
    "old, linear": (
        {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        7.0,
        RopeScaling(kind="linear", factor=2.0),
    ),
    "new, linear": (
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 9.0, "factor": 2}},
        9.0,
        RopeScaling(kind="linear", factor=2.0),
    ),
    "old, llama3": (
        {"rope_theta": 7.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        7.0,
        RopeScaling(kind="llama3", factor=8.0, original_max_position=64),
    ),
    "new, llama3": (
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 9.0, **LLAMA3}},
        9.0,
        RopeScaling(kind="llama3", factor=8.0, original_max_position=64),
    ),
    "old, dynamic": (
        {"rope_theta": 7.0, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
        7.0,
        None,
    ),
    "new, dynamic": (
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 9.0, "factor": 4.0}},
        9.0,
        None,
    ),
    "nothing": ({}, 10_000.0, None),
}


@pytest.mark.parametrize("case", ROPE)
def test_rope_in_old_and_new_configs(tmp_path: Path, case: str) -> None:
    changes, theta, scaling = ROPE[case]
    config = _prepare(write_hub_folder(tmp_path / "m", config={**LLAMA_CONFIG, **changes})).config
    assert (config.ropes[0].theta, config.ropes[0].scaling) == (theta, scaling)


def test_biases_of_llama(tmp_path: Path) -> None:
    changes = {"attention_bias": True, "mlp_bias": True}
    config = _prepare(write_hub_folder(tmp_path / "m", config={**LLAMA_CONFIG, **changes})).config
    assert config.layers[0].attention.qkv_bias
    assert config.layers[0].attention.output_bias
    assert config.layers[0].feed_forward.bias


@pytest.mark.parametrize(("dtype", "name"), [(np.float16, "float16"), (np.float32, "float32")])
def test_dtype_is_that_of_the_weights(tmp_path: Path, dtype: Any, name: str) -> None:
    assert _prepare(write_hub_folder(tmp_path / "m", dtype=dtype)).weights.dtype == name


def test_shards(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for shard in shards:
        save_file({shard[6:11]: np.zeros(1, np.float32)}, folder / shard)
    index = {"metadata": {}, "weight_map": {shard[6:11]: shard for shard in shards}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert _prepare(folder).weights.files == tuple(str(folder / shard) for shard in shards)


def test_bos_of_the_post_processor_is_seen(tmp_path: Path) -> None:
    settings = {"bos_token": {"content": "<s>", "__type": "AddedToken"}, "eos_token": "</s>"}
    tokenizer = sentencepiece_tokenizer()
    for name, kind in (("with", with_bos(tokenizer, "<s>")), ("without", tokenizer)):
        folder = write_hub_folder(tmp_path / name, tokenizer=kind, tokenizer_config=settings)
        manifest = _prepare(folder)
        assert manifest.generation.bos_token_id == 1
        assert manifest.generation.eos_token_ids == (2,)
        assert manifest.add_bos == (name == "with")


TEMPLATES: dict[str, tuple[dict[str, str], Any, str]] = {
    "in the settings": ({}, "in settings", "in settings"),
    "none": ({}, None, ""),
    "named": (
        {}, [{"name": "x", "template": "t"}, {"name": "default", "template": "d"}], "d"),
    "file instead of named": (
        {"chat_template.jinja": "own"},
        [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "own"),
    "one named": ({}, [{"name": "x", "template": "t"}], "t"),
    "file of its own": ({"chat_template.jinja": "own\r\n ☃"}, "in settings", "own\r\n ☃"),
    "JSON of its own": (
        {"chat_template.json": json.dumps({"chat_template": "json"})}, "in settings", "json"),
}  # fmt: skip


@pytest.mark.parametrize("case", TEMPLATES)
def test_chat_template(tmp_path: Path, case: str) -> None:
    files, setting, expected = TEMPLATES[case]
    folder = write_hub_folder(tmp_path / "m", tokenizer_config={"chat_template": setting})
    for name, content in files.items():
        (folder / name).write_bytes(content.encode())
    prepared = prepare(str(folder), cache_dir=str(tmp_path / "cache"))
    assert (prepared / "chat_template.jinja").read_bytes() == expected.encode()
    assert load_manifest(prepared).has_chat_template == bool(expected)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": (
        {"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM is not served; Arcee"),
    "no architecture": ({"architectures": None}, "architectures is missing"),
    "BERT that generates": (
        {"model_type": "bert", "is_decoder": True, "hidden_act": "gelu"}, "that is a decoder"),
    "quantised": (
        {"quantization_config": {"quant_method": "aqlm"}}, "quantised by aqlm are not served"),
    "sliding layers": ({"layer_types": ["sliding_attention"]}, "has 'sliding_attention'"),
    "a rotary setting of tomorrow": (
        {"rope_parameters": {"rope_type": "default", "bend": 2}}, "rope_parameters: bend is 2"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not served; silu is"),
    "partial rotary": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    "dynamic with a base of its own": (
        {"rope_scaling": {"type": "dynamic", "factor": 4.0, "alpha": 1000.0}}, "alpha is 1000"),
    "ntk": (
        {"rope_scaling": {"type": "ntk", "factor": 4.0}}, "'ntk' is not served; default"),
    "scaling without factor": ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    "scaling by nothing": ({"rope_scaling": {"type": "linear", "factor": 0}}, "positive"),
    "bands": (
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 5.0}}, "ascending"),
    "heads and width": ({"num_attention_heads": 5}, "5 attention heads don't divide"),
    "head counts": ({"num_key_value_heads": 2}, "3 attention heads .* 2 key/value heads"),
    "odd head": ({"head_dim": 7}, "head_dim is 7"),
    "no heads": ({"num_attention_heads": 0}, "0 attention heads"),
    "no KV heads": ({"num_key_value_heads": 0}, "num_key_value_heads|num_kv_heads is 0"),
    "text for a number": ({"hidden_size": "24"}, "hidden_size is '24'; a whole number is needed"),
    "flag for a number": ({"hidden_size": True}, "hidden_size is True"),
    "a negative width": ({"hidden_size": -64}, "hidden_size is -64; 1 is the least allowed"),
    "no width": ({"hidden_size": None}, "hidden_size is missing"),
    "huge": ({"num_hidden_layers": 10**9}, "num_layers is 1000000000; 1 to 4096"),
    "endless": ({"rms_norm_eps": float("inf")}, "finite"),
    "small vocabulary": ({"vocab_size": 100}, "has only 100 embeddings"),
    "EOS outside": ({"eos_token_id": 700}, "EOS id 700 is outside the vocabulary of 700"),
    "EOS is text": ({"eos_token_id": "2"}, "eos_token_id is '2'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unserved_settings_of_a_hub_folder_are_named(tmp_path: Path, case: str) -> None:
    changes, reason = REFUSED[case]
    folder = write_hub_folder(tmp_path / "odd", config={**LLAMA_CONFIG, **changes})
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        _prepare(folder)
    assert "odd" in str(raised.value)


def test_minilm_is_found_by_all_its_names(tmp_path: Path, minilm_folder: Path) -> None:
    hub_id = "sentence-transformers/all-MiniLM-L6-v2"
    for name in ("all-minilm-l6-v2", "minilm", hub_id, str(minilm_folder)):
        model = load_manifest(prepare(name, cache_dir=str(tmp_path)))
        assert isinstance(model.config, EncoderConfig)
        assert model.config.family == "bert"
        assert model.pooling == PoolingConfig(mode="mean", normalize=True, size=384, max_input=256)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    for name, content, reason in (
        ("tokenizer.json", b"{}", "tokenizer.json can't be read"),
        ("tokenizer.json", b'{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","b"]]}}',
         "tokenizer.json can't be read"),
        ("config.json", b"[]", "not a JSON object"),
        ("config.json", b"{", "not readable JSON"),
        ("config.json", b"[" * 100_000, "not readable JSON"),
        ("generation_config.json", b'"\xff"', "not readable JSON"),
        ("tokenizer_config.json", b'{"eos_token": 5}', "a token of tokenizer.json"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "a text, or a list"),
        ("chat_template.jinja", b"\xff", "can't be read"),
        ("model.safetensors", b"", "not a readable safetensors"),
    ):  # fmt: skip
        folder = write_hub_folder(tmp_path / "m")
        (folder / name).write_bytes(content)
        with pytest.raises(UnsupportedModel, match=reason):
            _prepare(folder)
        (folder / name).unlink()


def test_missing_files_are_named(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"holds no tokenizer\.json"):
        _prepare(folder)
    folder = write_hub_folder(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"pickled .*convert them to \.safetensors"):
        _prepare(folder)
    (folder / "config.json").unlink()
    (folder / "some.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"holds no config\.json.*\.gguf files itself"):
        _prepare(folder)


def test_an_adapters_folder_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(UnsupportedModel, match=r"a LoRA adapter of org/base,.*--enable-lora"):
        _prepare(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match="not readable JSON"):
        _prepare(tmp_path)


def test_nothing_heavy_is_imported_to_prepare(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path / "m", tokenizer=byte_level_tokenizer())
    code = SCRIPT + "print([m for m in ('torch', 'transformers', 'triton') if m in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(tmp_path / "c")],
        capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    assert ran.stdout.splitlines()[-1] == "[]"
