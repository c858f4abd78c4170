"""config.json of Gemma 4's assistants, written from memory: no release's could be had."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedTextConfig,
)

from penstock.errors import UnsupportedModel
from penstock.families.gemma4_assistant import beside
from penstock.formats.fields import Fields
from penstock.prepare.from_hub_folder import read_head
from penstock.prepare.hub_config import HARMLESS, read_config
from tests.shared.families.release_configs import releases
from tests.shared.families.test_read_settings import read_by_transformers
from tests.shared.releases.reading import RELEASES
from tests.worker.models.case_sizes import mixed

EXPERTS = releases("experts")

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

TEXT_OF_12B = {key: value for key, value in TEXT.items() if "per_layer_input" not in key} | {
    "model_type": "gemma4_unified_text",
    "num_global_key_value_heads": 1,
}
OF_12B: dict[str, Any] = ASSISTANT | {
    "architectures": ["Gemma4UnifiedAssistantForCausalLM"],
    "model_type": "gemma4_unified_assistant",
    "backbone_hidden_size": 3840,
    "text_config": TEXT_OF_12B,
}
SERVED_12B: dict[str, Any] = RELEASES["google/gemma-4-12B"]["config"]


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


def test_gemma_4_12b_and_its_assistant() -> None:
    served = read_config(Fields(SERVED_12B, "the model"))
    assert (served.num_layers, served.per_layer_inputs) == (48, None)
    head = beside(read_head(Fields(OF_12B, "config.json")), served)
    assert [layer.attention.reads for layer in head.layers] == [46, 46, 46, 47]
    written = Gemma4UnifiedAssistantConfig(**OF_12B).to_dict()
    again = written | {"architectures": OF_12B["architectures"]}
    assert read_head(Fields(again, "config.json")) == read_head(Fields(OF_12B, "config.json"))
    less = {key: value for key, value in OF_12B.items() if key != "backbone_hidden_size"}
    usual = Gemma4UnifiedAssistantConfig(**less).backbone_hidden_size
    assert read_head(Fields(less, "config.json")).served_hidden == usual


def test_what_12b_leaves_out_is_transformers_default() -> None:
    names = ("num_key_value_heads", "max_position_embeddings", "sliding_window", "vocab_size")
    for name in names:
        text = {key: value for key, value in SERVED_12B["text_config"].items() if key != name}
        whole = text | {name: getattr(Gemma4UnifiedTextConfig(), name)}
        less, more = (
            read_config(Fields(SERVED_12B | {"text_config": each}, "config.json"))
            for each in (text, whole)
        )
        assert less == more, name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"enable_moe_block": True}, "enable_moe_block is True"),
        ({"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input is 256"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ({"num_hidden_layers": 10**9}, "1000000000"),
    ],
)
def test_other_12bs_are_refused(change: dict[str, Any], said: str) -> None:
    text = SERVED_12B["text_config"] | change
    with pytest.raises(UnsupportedModel, match=said):
        read_config(Fields(SERVED_12B | {"text_config": text}, "config.json"))


def test_an_assistant_of_another_kind_of_layers_is_refused() -> None:
    for whole, text in ((OF_12B, TEXT), (ASSISTANT, TEXT_OF_12B)):
        with pytest.raises(UnsupportedModel, match="model_type is 'gemma4"):
            read_head(Fields(whole | {"text_config": text}, "config.json"))
