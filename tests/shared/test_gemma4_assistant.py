"""config.json of Gemma 4's assistants, written from memory: no release's could be had."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

from penstock.errors import UnsupportedModel
from penstock.families.gemma4_assistant import beside
from penstock.formats.fields import Fields
from penstock.prepare.from_hub_folder import read_head
from penstock.prepare.hub_config import HARMLESS, read_config
from tests.shared.expert_configs import EXPERTS
from tests.shared.test_read_settings import read_by_transformers
from tests.worker.models.case_sizes import mixed

TEXT: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "hidden_size": 1024,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "layer_types": mixed("sliding", "sliding", "sliding", "full"),
    "num_kv_shared_layers": 4,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1_000_000.0,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
ASSISTANT: dict[str, Any] = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": 2816,
    "tie_word_embeddings": True,
    "use_ordered_embeddings": False,
    "num_centroids": 2048,
    "centroid_intermediate_top_k": 32,
    "text_config": TEXT,
}
"""The config.json of an assistant of Gemma 4 26B-A4B."""


def test_layers_read_the_last_of_their_kind() -> None:
    served = read_config(Fields(EXPERTS["gemma-4-26b-a4b"], "the model"))
    head = beside(read_head(Fields(ASSISTANT, "config.json")), served)
    reads = [layer.attention.reads for layer in head.layers]
    assert reads == [28, 28, 28, 29]
    assert (head.served_hidden, head.vocab_size, head.id_groups) == (2816, 262_144, 0)
    assert head.ropes == served.ropes


def test_no_model_without_such_layers() -> None:
    served = read_config(Fields(EXPERTS["gemma-4-26b-a4b"], "the model"))
    text = TEXT | {"num_global_key_value_heads": 4}
    head = read_head(Fields(ASSISTANT | {"text_config": text}, "config.json"))
    with pytest.raises(UnsupportedModel, match="its layer 3 reads 4 KV heads of 512 numbers and"):
        beside(head, served)


def test_what_transformers_writes_is_read_alike() -> None:
    written = Gemma4AssistantConfig(**ASSISTANT).to_dict() | {
        "architectures": ASSISTANT["architectures"]
    }
    ours = read_head(Fields(ASSISTANT, "config.json"))
    assert read_head(Fields(written, "config.json")) == ours
    for groups in ({"num_centroids": 1024}, {"centroid_intermediate_top_k": 8}, {}):
        said = ASSISTANT | {"use_ordered_embeddings": True} | groups
        less = {key: value for key, value in said.items() if key not in groups}
        theirs = Gemma4AssistantConfig(**less)
        head = read_head(Fields(less, "config.json"))
        assert head.id_groups == theirs.num_centroids
        assert head.likeliest_groups == theirs.centroid_intermediate_top_k


def test_what_transformers_reads_is_read() -> None:
    fields = Fields(ASSISTANT, "config.json")
    read_head(fields)
    read = read_by_transformers(Gemma4AssistantForCausalLM, Gemma4AssistantConfig)
    assert read >= {"backbone_hidden_size", "use_ordered_embeddings"}
    assert read - fields._asked - HARMLESS == set()
