"""config.json of releases is read with transformers' numbers, or refused for an architecture that
the table of families lacks."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from penstock.errors import UnsupportedModel
from penstock.families.served import ENCODER_TYPES
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.prepare.hub_pooling import read_pooling
from penstock.prepare.quantised import read_quantisation
from penstock_worker.layers.rotary import Rotary
from penstock_worker.weights.weights import Weights
from tests.shared.releases.reading import (
    KNOWN,
    NOT_SERVED,
    READ,
    RELEASES,
    our_reading,
    ours,
    their_decoder,
    their_reading,
    theirs,
)

DECODERS = [name for name in KNOWN if isinstance(our_reading(name), ModelConfig)]
TIED = "tie_word_embeddings"
KINDS = {"full_attention", "sliding_attention"}
PAIR = ("main", "compress")
"""What DeepSeek V4's two rotations are called."""


@pytest.mark.parametrize("name", sorted(NOT_SERVED))
def test_an_architecture_that_is_not_served_is_named(name: str) -> None:
    config = RELEASES[name]["config"]
    reason = f"model_type is {config.get('model_type')}"
    if "architectures" in config:
        (named,) = config["architectures"]
        reason = f"the architecture {named} is not served"
    with pytest.raises(UnsupportedModel, match=reason):
        our_reading(name)


@pytest.mark.parametrize("name", READ)
def test_numbers_are_transformers(name: str) -> None:
    config = our_reading(name)
    if name not in KNOWN:
        pytest.skip("transformers has no class for it")
    whole, text = their_reading(name), their_decoder(name)
    if isinstance(config, EncoderConfig):
        assert config.hidden_size == text.hidden_size
        assert config.num_layers == text.num_hidden_layers
        return
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_target_positions" if config.learned_positions else "max_position_embeddings": (
            config.max_position - config.encoder_rows
        ),
    }
    stated = {key: getattr(text, key) for key in sizes}
    if config.pictures_apart:
        stated["vocab_size"] += 8  # The embedding has them beside the head's tokens.
    assert sizes == stated
    tied = [each.tie_word_embeddings for each in (whole, text) if hasattr(each, TIED)]
    assert config.tie_word_embeddings == tied[0]
    if not hasattr(text, "kv_lora_rank"):  # Latents are one KV head.
        kv_heads = getattr(text, "num_key_value_heads", text.num_attention_heads)
        assert config.num_kv_heads == kv_heads
        head_dim = getattr(text, "head_dim", None)
        assert config.head_dim == (head_dim or text.hidden_size // text.num_attention_heads)
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
    eps = [getattr(text, each) for each in names if hasattr(text, each)]
    assert config.norm.eps == (eps[0] if eps else 1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_rotations_are_transformers(name: str) -> None:
    config, text = our_reading(name), their_decoder(name)
    assert isinstance(config, ModelConfig)
    stated = getattr(text, "rope_parameters", None) or {}
    if not config.ropes or not stated:
        pytest.skip("nothing rotates")
    if config.architecture == "minimax_m2":
        pytest.skip("transformers' class doesn't read rotary_dim, as the makers' code does")
    by_layer = [kind for kind in stated if kind in KINDS and kind in text.layer_types]
    for kind in by_layer or [name for name in PAIR if name in stated] or [None]:
        number = text.layer_types.index(kind) if by_layer else 0
        rope = config.layer(number).attention.rope if by_layer else 0
        if kind in PAIR:
            rope = PAIR.index(kind)
        assert rope is not None
        mine = Rotary.load(config.ropes[rope], Weights({}, torch.float32), 64)
        dims = config.latent.rotating if config.latent else config.kv_heads(number).size
        frequencies, factor = their_rotation(text, kind, dims)
        angles = torch.outer(torch.arange(64.0), frequencies)
        assert torch.allclose(mine.cos, angles.cos() * factor, atol=2e-5)
        assert torch.allclose(mine.sin, angles.sin() * factor, atol=2e-5)


def their_rotation(text: Any, kind: str | None, dims: int) -> tuple[torch.Tensor, float]:
    """Frequencies, and what cosines and sines are multiplied by. dims: numbers of a head."""
    settings = text.rope_parameters[kind] if kind else text.rope_parameters
    stretched = ROPE_INIT_FUNCTIONS.get(settings["rope_type"])
    if stretched is not None:
        found, factor = stretched(text, "cpu", **({"layer_type": kind} if kind else {}))
        return found, settings.get("short_mscale", factor)  # PhiMoE's class has its own.
    dims = int(dims * settings.get("partial_rotary_factor", 1.0))
    return 1.0 / settings["rope_theta"] ** (torch.arange(0, dims, 2).float() / dims), 1.0


@pytest.mark.parametrize("name", DECODERS)
def test_windows_and_experts_are_transformers(name: str) -> None:
    config, text = our_reading(name), their_decoder(name)
    assert isinstance(config, ModelConfig)
    layers = [config.layer(number) for number in range(config.num_layers)]
    kinds = getattr(text, "layer_types", None) or []
    if set(kinds) <= KINDS and kinds:
        window = getattr(text, "sliding_window", None)
        wanted = [window if kind == "sliding_attention" else None for kind in kinds]
        assert [layer.attention.window for layer in layers] == wanted
    experts = next((each for each in (one.feed_forward.experts for one in layers) if each), None)
    if experts is None:
        return
    found = {
        "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
        "active": ("num_experts_per_tok", "top_k_experts"),
        "inner": ("moe_intermediate_size", "intermediate_size"),
        "scale": ("routed_scaling_factor", "moe_router_scaling_factor", "route_scale"),
    }
    stated = {
        what: next((value for key in keys if (value := getattr(text, key, None))), None)
        for what, keys in found.items()
    }
    assert stated["experts"] == experts.count
    assert stated["active"] == experts.active
    assert stated["inner"] == experts.inner
    assert (stated["scale"] or 1.0) == experts.scale
    assert (getattr(text, "moe_latent_size", None) or 0) == experts.latent


# ---- as transformers writes it again


def comparable(config: ModelConfig | EncoderConfig) -> dict[str, Any]:
    """What was read, without a length that means nothing where queries don't grow."""
    found: dict[str, Any] = msgspec.to_builtins(config)
    for rope in found.get("ropes", ()):
        if not rope["query_growth"]:
            rope["query_growth_length"] = 0
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_a_release_that_was_saved_again_reads_the_same(name: str) -> None:
    """A fine-tuned model's file is what transformers made of the original's."""
    config = RELEASES[name]["config"]
    if config["model_type"] == "llama4" and "vision_config" not in config:
        pytest.skip("transformers adds a tower that doesn't fit its own projector")
    for differences in (False, True):
        again = saved(their_reading(name), config, differences=differences)
        assert comparable(ours(again)) == comparable(our_reading(name))


def saved(
    reading: PretrainedConfig, config: dict[str, Any], *, differences: bool = False
) -> dict[str, Any]:
    again: dict[str, Any] = json.loads(reading.to_json_string(use_diff=differences))
    return again | {"architectures": config["architectures"]}


SECTIONS = ("text_config", "vision_config", "audio_config")
NESTED = {
    RELEASES[name]["config"]["architectures"][0]: name
    for name in sorted(KNOWN, key=lambda name: len(RELEASES[name]["config"]))
    if any(section in RELEASES[name]["config"] for section in SECTIONS)
}
"""For each class whose files have sections, the release that says most."""
NEEDED = {"model_type", "rope_parameters"}
"""Settings of sections that files have: which class it is, and how a head's numbers are dealt out
to rows and columns of pictures."""


@pytest.mark.parametrize("name", NESTED.values(), ids=NESTED.keys())
def test_what_a_section_leaves_out_is_transformers_default(name: str) -> None:
    """Releases before 5 of transformers left out what was the class's default."""
    config = RELEASES[name]["config"]
    whole, compared = saved(their_reading(name), config), 0
    for section in SECTIONS:
        for key in (whole.get(section) or {}).keys() - NEEDED:
            less = {other: value for other, value in whole[section].items() if other != key}
            try:
                wanted = ours(saved(theirs(whole | {section: less}), config))
            except (UnsupportedModel, ValueError, StrictDataclassError):
                continue  # What is left doesn't fit the default.
            assert comparable(ours(whole | {section: less})) == comparable(wanted), (section, key)
            compared += 1
    assert compared > 8


NEMOTRON = "nvidia/Llama-3_3-Nemotron-Super-49B-v1"


def first_block(**parts: dict[str, Any]) -> dict[str, Any]:
    """A change of the first layer of DeciLM's config.json."""
    blocks = copy.deepcopy(RELEASES[NEMOTRON]["config"]["block_configs"])
    for part, change in parts.items():
        blocks[0][part] |= change
    return {"block_configs": blocks}


NOTHING = {"no_op": True}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("copy/k_exaone_236b", {"n_group": 5}, "8 of 128 experts can't be chosen from 1 of 5"),
        ("copy/k_exaone_236b", {"is_moe_layer": [True]}, "a list of 4 times 'dense' or 'sparse'"),
        ("copy/k_exaone_236b", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ("copy/ernie4_5_21b_a3b", {"use_bias": True}, "use_bias is True"),
        ("copy/ernie4_5_21b_a3b", {"moe_layer_interval": 0}, "moe_layer_interval is 0"),
        ("copy/ernie4_5_21b_a3b", {"moe_k": 65}, "num_experts_per_tok is 65"),
        ("copy/ling_mini_2.0", {"score_function": "softmax"}, "score_function is 'softmax'"),
        ("copy/ling_mini_2.0", {"n_group": 7}, "8 of 256 experts can't be chosen"),
        ("copy/ling_lite_1.5", {"norm_head": True}, "norm_head is True"),
        ("copy/glm4_9b", {"add_bias_linear": True}, "add_bias_linear is True"),
        ("copy/glm4_9b", {"post_layer_norm": False}, "post_layer_norm is False"),
        ("copy/minicpm4.1_8b", {"sparse_config": {"topk": 64}}, "which is not served"),
        ("XiaomiMiMo/MiMo-7B-Base", {"attention_bias": False}, "attention_bias is False"),
        ("copy/falcon_h1_0.5b", {"mlp_multipliers": [1.0]}, "a list of 2 numbers"),
        ("copy/falcon_h1_0.5b", {"ssm_multipliers": [1, 1, 1, 1, "x"]}, "ssm_multipliers"),
        ("copy/falcon_h1_0.5b", {"ssm_in_multiplier": 0}, "ssm_in_multiplier is 0; a positive"),
        ("copy/falcon_h1_0.5b", {"mamba_d_ssm": 1500}, "don't make up the inner size 1500"),
        ("copy/falcon_h1_0.5b", {"attention_bias": True}, "attention_bias is True"),
        (
            "copy/falcon_h1_0.5b",
            {"mamba_rms_norm": True, "mamba_norm_before_gate": True},
            "false where mamba_rms_norm is true",
        ),
        (NEMOTRON, {"block_configs": [{}]}, "a list of 80 blocks"),
        (NEMOTRON, first_block(attention={"replace_with_linear": True}), "replace_with_linear"),
        (NEMOTRON, first_block(attention={"n_heads_in_group": 7}), "a divisor of 64 heads"),
        (NEMOTRON, first_block(attention={"window_length": 128}), "window_length is 128"),
        (NEMOTRON, first_block(attention={"mamba": {"state": 8}}), "mamba is .* null or false"),
        (NEMOTRON, first_block(ffn={"ffn_mult": -1.0}), "ffn_mult is -1.0"),
        (NEMOTRON, first_block(ffn={"moe": {"experts": 8}}), "moe is .* null or false"),
        (NEMOTRON, first_block(attention=NOTHING, ffn=NOTHING), "layer 0 has neither"),
    ],
)
def test_other_variants_of_releases_are_refused(
    name: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        ours(RELEASES[name]["config"] | change, name)


def test_a_class_without_an_ending_may_generate(tmp_path: Path) -> None:
    """GLM-4-9B's makers call it ChatGLMModel; other names that end so are of models that give
    vectors."""
    for name, generates in (("copy/glm4_9b", True), ("copy/llama3", False)):
        config = RELEASES[name]["config"]
        if not generates:
            config = config | {"architectures": ["LlamaModel"]}
        pooling = read_pooling(tmp_path, Fields(config, name), ours(config, name))
        assert (pooling is None) == generates


def test_a_makers_own_name_of_the_model_type() -> None:
    """And without what is transformers' default."""
    short = our_reading("sgl-project/DeepSeek-V4-Flash-FP8")
    for name in ("deepseek-ai/DeepSeek-V4-Flash", "nvidia/DeepSeek-V4-Flash-NVFP4"):
        assert our_reading(name) == short
    assert isinstance(short, ModelConfig)
    specs = [short.layer(number).attention.compressed for number in range(43)]
    assert [spec.rate for spec in specs if spec] == [0, 0, *(4, 128) * 20, 4]
    experts = [short.layer(number).feed_forward.experts for number in range(43)]
    assert [each.by_token for each in experts if each] == [True] * 3 + [False] * 40


def test_layers_that_a_search_has_thinned_out() -> None:
    config = our_reading(NEMOTRON)
    assert isinstance(config, ModelConfig)
    layers = [config.layer(number) for number in range(config.num_layers)]
    assert [number for number in range(12) if not layers[number].attends] == [6, 7, 11]
    assert sum(layer.attends for layer in layers) == 49
    assert config.inner(0) == 14_336
    assert config.inner(1) == 28_672


# ---- quantisation


MODELOPT = {
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": "modelopt fp8",
    "nvidia/DeepSeek-V3.1-NVFP4": "modelopt nvfp4",
    "nvidia/Gemma-4-26B-A4B-NVFP4": "modelopt nvfp4",
    "nvidia/Gemma-4-31B-IT-NVFP4": "modelopt nvfp4",
    "nvidia/Llama-3.1-70B-Instruct-FP8": "modelopt fp8",
    "nvidia/MiniMax-M2.5-NVFP4": "modelopt nvfp4",
    "nvidia/MiniMax-M2.7-NVFP4": "modelopt nvfp4",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": "modelopt nvfp4",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": "modelopt fp8",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": "modelopt nvfp4",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": "modelopt fp8",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": "modelopt nvfp4",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": "modelopt fp8/nvfp4",
    "nvidia/Qwen3-235B-A22B-NVFP4": "modelopt nvfp4",
    "nvidia/Qwen3.5-122B-A10B-NVFP4": "modelopt nvfp4",
    "nvidia/Qwen3.5-397B-A17B-NVFP4": "modelopt nvfp4",
    "nvidia/Qwen3.6-27B-NVFP4": "modelopt fp8/nvfp4",
    "nvidia/Qwen3.6-35B-A3B-NVFP4": "modelopt fp8/nvfp4",
}
"""Releases that NVIDIA's Model Optimizer quantised. Several say so in hf_quant_config.json only."""
OTHERS = {
    "MiniMaxAI/MiniMax-M2.7": "fp8",
    "Qwen/Qwen1.5-MoE-A2.7B-Chat-GPTQ-Int4": "gptq int4",
    "Qwen/Qwen2-VL-2B-Instruct-AWQ": "awq int4",
    "RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic": "compressed-tensors fp8",
    "copy/llama3_1_405b": "fbgemm_fp8 fp8",
    "mirror/Orpheus-3B-bitsandbytes": "bitsandbytes nf4",
    "mistralai/Devstral-2-123B-Instruct-2512": "fp8",
    "openai/gpt-oss-20b": "mxfp4",
    "deepseek-ai/DeepSeek-V4-Flash": "fp8 fp8/mxfp4",
    "nvidia/DeepSeek-V4-Flash-NVFP4": "fp8 fp8/nvfp4",
    "sgl-project/DeepSeek-V4-Flash-FP8": "fp8",
}
"""Releases that others quantised."""


@pytest.mark.parametrize("name", MODELOPT)
def test_quantisation_by_model_optimizer(name: str) -> None:
    release = RELEASES[name]
    found = read_quantisation(Fields(release["config"], name), Fields(release["quant"], name))
    assert found is not None
    assert found.name == MODELOPT[name]
    beside = release["quant"]["quantization"]
    assert list(found.unquantised) in (beside.get("exclude_modules", []), found_in(release))


def found_in(release: dict[str, Any]) -> list[str]:
    return release["config"].get("quantization_config", {}).get("ignore", [])


@pytest.mark.parametrize("name", OTHERS)
def test_quantisation_by_others(name: str) -> None:
    found = read_quantisation(Fields(RELEASES[name]["config"], name))
    assert found is not None
    assert found.name == OTHERS[name]


def test_quantisation_by_mlx_is_refused() -> None:
    config = RELEASES["Qwen/Qwen3-14B-MLX-4bit"]["config"]
    older = {key: value for key, value in config.items() if key != "quantization_config"}
    for values in (config, older):
        with pytest.raises(UnsupportedModel, match="quantised by MLX are not served"):
            read_quantisation(Fields(values, "config.json"))


def test_types_of_encoders_are_known() -> None:
    """Else the tests above would compare little."""
    assert {"bert", "roberta"} <= ENCODER_TYPES.keys()
    assert len(READ) > 150
    assert len(DECODERS) > 140
