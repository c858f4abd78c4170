"""Qwen's and Baichuan's settings: what is read, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen import QWEN
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.prepare.hub_config import read_config
from penstock_families.baichuan import BAICHUAN, BAICHUAN2, SECOND_VOCABULARY
from tests.shared.releases.reading import RELEASES

KEYS = {
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "block_count": 3,
    "context_length": 32_768,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "rope.freq_base": 10_000.0,
}


def read(name: str, **changes: Any) -> ModelConfig:
    """A release with other settings. None: it lacks one."""
    values = {**RELEASES[name]["config"], **changes}
    return read_config(Fields({k: v for k, v in values.items() if v is not None}, "config.json"))


def test_qwens_context_ends_where_its_code_stretches() -> None:
    own = read("copy/qwen_7b")
    assert (own.max_position, own.intermediate_size, own.head_dim) == (8192, 11_008, 128)
    assert own.layers[0].attention.qkv_bias
    assert not own.layers[0].attention.output_bias
    one = read("copy/qwen_7b", use_dynamic_ntk=False)
    assert one.max_position == 8192  # logn is left
    plain = read("copy/qwen_7b", use_dynamic_ntk=False, use_logn_attn=False)
    assert plain.max_position == 32_768


@pytest.mark.parametrize(
    "wrong",
    [
        {"rotary_pct": 0.5},
        {"scale_attn_weights": False},
        {"intermediate_size": 11_009},
        {"visual": {"layers": 48}},  # Qwen-VL
    ],
)
def test_other_qwens_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=next(iter(wrong))):
        read("copy/qwen_7b", **wrong)


@pytest.mark.parametrize(
    "large",
    [{"max_position_embeddings": None}, {"hidden_size": 5120, "num_attention_heads": 40}],
)
def test_baichuans_with_alibi_are_refused(large: dict[str, Any]) -> None:
    assert read("copy/baichuan2_7b").architecture == "baichuan2"
    with pytest.raises(UnsupportedModel, match="ALiBi"):
        read("copy/baichuan2_7b", **large)


def test_the_first_baichuan_has_a_plain_head() -> None:
    """Its config.json is written from memory: but for class and vocabulary as the second's."""
    first = read("copy/baichuan2_7b", architectures=["BaiChuanForCausalLM"], vocab_size=64_000)
    assert first.architecture == "baichuan"
    assert (BAICHUAN.hub_names.unit_rows, BAICHUAN2.hub_names.unit_rows) == (set(), {"lm_head"})


def test_gguf_files() -> None:
    """They don't say how far Qwen's text goes, nor which Baichuan it is."""
    assert QWEN.read_gguf is not None
    assert BAICHUAN.read_gguf is not None
    qwen = QWEN.read_gguf(GGUFMetadata(Fields(KEYS, "x"), (), 64))
    assert (qwen.max_position, qwen.intermediate_size) == (8192, 48)
    larger = {**KEYS, "rope.freq_base": 1_000_000.0}  # 72B
    assert QWEN.read_gguf(GGUFMetadata(Fields(larger, "x"), (), 64)).max_position == 32_768
    for vocabulary, name in ((64_000, "baichuan"), (SECOND_VOCABULARY, "baichuan2")):
        found = BAICHUAN.read_gguf(GGUFMetadata(Fields(KEYS, "x"), (), vocabulary))
        assert found.architecture == name
    with pytest.raises(UnsupportedModel, match="ALiBi"):
        BAICHUAN.read_gguf(GGUFMetadata(Fields({**KEYS, "block_count": 40}, "x"), (), 64_000))


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("num_experts_per_tok", 3),
        ("router_jitter_noise", -0.1),
        ("rope_scaling", {"long_mscale": 1.5}),
        ("rope_scaling", {"rope_type": "linear", "type": "linear", "factor": 2.0}),
    ],
)
def test_other_mixtures_of_phi_are_refused(key: str, wrong: Any) -> None:
    """Its cosines and sines have one multiplier, which config.json says."""
    own = read("copy/phimoe")
    experts, scaling = own.layers[0].feed_forward.experts, own.ropes[0].scaling
    assert experts is not None
    assert scaling is not None
    assert (experts.router, experts.nearness, own.head_bias) == ("sparse_mixer", 0.02, True)
    assert scaling.attention_factor == 1.243163121016122
    if isinstance(wrong, dict) and "type" not in wrong:
        wrong = RELEASES["copy/phimoe"]["config"][key] | wrong
    with pytest.raises(UnsupportedModel, match=r"mscale|linear|num_experts|router_jitter"):
        read("copy/phimoe", **{key: wrong})
