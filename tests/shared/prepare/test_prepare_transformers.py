"""Models that no family describes, for transformers' code: what is read of them, and refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.families.served import AUDIO_CLASSES, HUB_CLASSES
from penstock.families.vision.served import VISION_CLASSES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig, TransformersConfig
from penstock.prepare import find_prepared, load_manifest, prepare
from penstock.prepare.by_transformers import (
    is_for_transformers,
    read_for_transformers,
    without_instructions,
)
from testing.tiny_models import LLAMA_CONFIG, write_gguf, write_hub_folder

GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 700,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 128,
}


def read(**changes: Any) -> TransformersConfig:
    return read_for_transformers(Fields(GPT2 | changes, "config.json"))


def folder_of(tmp_path: Path, config: dict[str, Any]) -> str:
    return str(write_hub_folder(tmp_path / "m", config=config))


def test_sizes_of_an_older_naming(tmp_path: Path) -> None:
    folder = prepare(folder_of(tmp_path, GPT2), cache_dir=tmp_path / "cache")
    manifest = load_manifest(folder)
    config = manifest.config
    assert isinstance(config, TransformersConfig)
    assert manifest.pooling is None  # though the class's name ends in Model
    assert manifest.family == "GPT2LMHeadModel"
    assert (config.hidden_size, config.num_layers, config.max_position) == (24, 2, 128)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (3, 3, 8)
    assert json.loads(config.settings) == GPT2


@pytest.mark.parametrize("name", [*VISION_CLASSES, *AUDIO_CLASSES])
def test_what_sees_or_hears_is_ours_whatever_its_class_is_called(name: str) -> None:
    fields = Fields({"architectures": [name], "model_type": "any"}, "config.json")
    assert not is_for_transformers(fields, "auto")


@pytest.mark.parametrize(
    ("stated", "kv_heads", "head_dim"),
    [
        ({"multi_query": True}, 1, 8),
        ({"num_key_value_heads": 3, "head_dim": 30}, 3, 30),
        ({"num_kv_heads": 1}, 1, 8),
        ({"qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 16}, 3, 16),
        ({"qk_rope_head_dim": 4, "qk_nope_head_dim": 6}, 3, 10),
    ],
)
def test_heads(stated: dict[str, Any], kv_heads: int, head_dim: int) -> None:
    config = read(**stated)
    assert (config.num_kv_heads, config.head_dim) == (kv_heads, head_dim)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no decoder": ({"architectures": ["BartForConditionalGeneration"]}, "names end in ForCausalLM"),
    "no type": ({"model_type": None}, "model_type is missing"),
    "an encoder beside it": ({"is_encoder_decoder": True}, "an encoder with a decoder"),
    "it sees": ({"vision_config": {"hidden_size": 4}}, "has a section vision_config"),
    "recurrent": ({"layer_types": ["full_attention", "mamba"]}, "layer_types has 'mamba'"),
    "an indexer": ({"index_topk": 2048}, "attends to the tokens that an indexer chooses"),
    "chunks": ({"layer_types": ["chunked_attention"] * 2}, "layer_types has 'chunked_attention'"),
    "quantised": (
        {"quantization_config": {"quant_method": "awq"}},
        "quantised by awq is not served by transformers' code; its unquantised weights are",
    ),
    "many layers": ({"n_layer": 10**9}, "n_layer is 1000000000; at most 4096"),
    "many layers inside": ({"text": {"num_hidden_layers": 10**9}}, "num_hidden_layers is 1000000"),
    "many experts": ({"n_routed_experts": 10**9}, "n_routed_experts is 1000000000; at most"),
    "large experts": (
        {"num_experts": 4096, "expert_intermediate_size": 1 << 41},
        "expert_intermediate_size is 2199023255552; at most 1099511627776",
    ),
    "no layers": ({"n_layer": 0}, "num_layers is 0"),
    "no positions": ({"n_positions": None}, "max_position_embeddings is missing"),
    "a huge width": ({"n_embd": 10**12}, "don't divide the hidden size|hidden_size is 10000"),
    "heads": ({"n_head": 5}, "5 attention heads don't divide the hidden size 24"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_model_that_transformers_cant_serve_here_is_refused(case: str) -> None:
    changes, said = BAD[case]
    with pytest.raises(UnsupportedModel, match=said):
        read(**changes)


def test_more_than_the_weights_hold(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="an embedding of 16777216 x 196608"):
        prepare(
            folder_of(tmp_path, GPT2 | {"vocab_size": 1 << 24, "n_embd": 3 << 16}),
            cache_dir=tmp_path / "cache",
        )


def test_auto_takes_a_family_where_there_is_one() -> None:
    for name in HUB_CLASSES:
        fields = Fields({"architectures": [name], "model_type": "x"}, "c")
        assert not is_for_transformers(fields, "auto")
        assert is_for_transformers(fields, "transformers")
    assert is_for_transformers(Fields(GPT2, "c"), "auto")
    assert not is_for_transformers(Fields(GPT2, "c"), "penstock")
    for other in ("FalconForCausalLM", "BertForMaskedLM", "MambaForCausalLM"):
        fields = Fields({"architectures": [other], "model_type": "x"}, "c")
        assert not is_for_transformers(fields, "auto")
    bert = Fields({"architectures": ["BertModel"], "model_type": "bert"}, "c")
    assert not is_for_transformers(bert, "auto")


@pytest.mark.parametrize("architectures", [None, "GPT2", [3], []])
def test_names_of_other_kinds(architectures: Any) -> None:
    fields = Fields({"architectures": architectures, "model_type": "gpt2"}, "c")
    assert not is_for_transformers(fields, "auto")


def test_each_implementation_has_its_own_folder(tmp_path: Path) -> None:
    """So that neither is taken for the other."""
    cache = tmp_path / "cache"
    llama = folder_of(tmp_path, LLAMA_CONFIG)
    own = prepare(llama, cache_dir=cache, model_impl="penstock")
    assert find_prepared(llama, cache, "auto") == own
    assert find_prepared(llama, cache, "transformers") is None
    theirs = prepare(llama, cache_dir=cache, model_impl="transformers")
    assert isinstance(load_manifest(theirs).config, TransformersConfig)
    assert type(load_manifest(own).config) is ModelConfig
    assert load_manifest(own).digest != load_manifest(theirs).digest
    assert find_prepared(llama, cache, "auto") == own
    gpt2 = str(write_hub_folder(tmp_path / "g", config=GPT2))
    assert prepare(gpt2, cache_dir=cache) == find_prepared(gpt2, cache, "transformers")
    with pytest.raises(UnsupportedModel, match="GPT2LMHeadModel is not served; Arcee"):
        prepare(gpt2, cache_dir=cache, model_impl="penstock")


def test_every_setting_is_part_of_the_digest(tmp_path: Path) -> None:
    def digest(**changes: Any) -> str:
        folder = folder_of(tmp_path, GPT2 | changes)
        return load_manifest(prepare(folder, cache_dir=tmp_path / "cache")).digest

    assert digest() != digest(some_setting_that_nobody_here_knows=3)


def test_a_gguf_file_has_no_other_code(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="reads no GGUF files"):
        prepare(
            str(write_gguf(tmp_path / "m.gguf")),
            cache_dir=tmp_path / "cache",
            model_impl="transformers",
        )


def test_what_tells_the_library_how_to_run_is_left_out() -> None:
    said = {"n": 1, "auto_map": {"A": "b--c.D"}, "torch_dtype": "x", "_attn_implementation": "k/k"}
    assert without_instructions(said | {"text": dict(said)}) == {"n": 1, "text": {"n": 1}}


def test_preparing_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from penstock.prepare import prepare; prepare(*sys.argv[1:2], "
        "cache_dir=sys.argv[2]); print({'torch', 'transformers'} & set(sys.modules))"
    )
    model = folder_of(tmp_path, GPT2)
    done = subprocess.run(
        [sys.executable, "-c", code, model, str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.strip() == "set()"
