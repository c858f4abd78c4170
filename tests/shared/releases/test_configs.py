"""config.json of releases, as their makers published it, read with transformers' numbers or refused
for an architecture that the table of families lacks.

`configs.json` has one release in a line; lists of modules that stay unquantised, and settings of
single layers' quantisation, are cut after twelve. Those named `copy/…` come from other projects'
test data, which may have shortened them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from penstock.errors import UnsupportedModel
from penstock.families import ENCODER_TYPES
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.prepare.hub_config import is_encoder, read_config, read_encoder_config
from penstock.prepare.quantised import read_quantisation

RELEASES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "configs.json").read_text(encoding="utf-8")
)
NOT_SERVED = {
    "XiaomiMiMo/MiMo-7B-Base",
    "XiaomiMiMo/MiMo-V2-Flash",
    "copy/clip_vision_model",
    "copy/exaone_7.8b",
    "copy/glm4_9b",
    "copy/internlm2_reward",
    "copy/phi3_v",
    "copy/phimoe",
    "copy/qwen_7b",
    "deepseek-ai/DeepSeek-V3.2",
    "moonshotai/Kimi-K2.5",
    "moonshotai/Kimi-K3",
    "nvidia/DeepSeek-V4-Flash-NVFP4",
    "nvidia/GLM-5-NVFP4",
    "nvidia/GLM-5.1-NVFP4",
    "nvidia/Kimi-K2.5-NVFP4",
    "nvidia/Kimi-K2.6-NVFP4",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "sgl-project/DeepSeek-V4-Flash-FP8",
    "sgl-project/DeepSeek-V4-Pro-FP8",
    "stepfun-ai/Step-3.7-Flash",
    "zai-org/GLM-5.1",
}
"""Releases of architectures that no family describes."""
READ = RELEASES.keys() - NOT_SERVED


def ours(name: str) -> ModelConfig | EncoderConfig:
    fields = Fields(RELEASES[name]["config"], name)
    if is_encoder(fields):
        return read_encoder_config(fields)
    return read_config(fields)


def theirs(name: str) -> PretrainedConfig:
    values = RELEASES[name]["config"]
    return type(AutoConfig.for_model(values["model_type"])).from_dict(dict(values))


@pytest.mark.parametrize("name", sorted(NOT_SERVED))
def test_an_architecture_that_is_not_served_is_named(name: str) -> None:
    (architecture,) = RELEASES[name]["config"]["architectures"]
    with pytest.raises(UnsupportedModel, match=f"the architecture {architecture} is not served"):
        ours(name)


@pytest.mark.parametrize("name", sorted(READ))
def test_numbers_are_transformers(name: str) -> None:
    config = ours(name)
    if RELEASES[name]["config"].get("model_type") not in CONFIG_MAPPING:
        pytest.skip("transformers has no class for it")
    whole = theirs(name)
    text = whole.get_text_config()
    text.allow_global_per_layer_attribute_access = True
    if isinstance(config, EncoderConfig):
        assert config.hidden_size == text.hidden_size
        assert config.num_layers == text.num_hidden_layers
        return
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.max_position,
    }
    assert sizes == {key: getattr(text, key) for key in sizes}
    assert config.tie_word_embeddings == whole.tie_word_embeddings
    if not hasattr(text, "kv_lora_rank"):  # Latents are one KV head.
        assert config.num_kv_heads == text.num_key_value_heads
        head_dim = getattr(text, "head_dim", None)
        assert config.head_dim == (head_dim or text.hidden_size // text.num_attention_heads)
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
    eps = next(getattr(text, each) for each in names if hasattr(text, each))
    assert config.norm.eps == eps
    rotation = getattr(text, "rope_parameters", None) or {}
    if "rope_theta" in rotation and config.ropes:
        assert config.ropes[0].theta == rotation["rope_theta"]


MODELOPT = {
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": "modelopt fp8",
    "nvidia/Gemma-4-31B-IT-NVFP4": "modelopt nvfp4",
    "nvidia/Llama-3.1-70B-Instruct-FP8": "modelopt fp8",
    "nvidia/MiniMax-M2.7-NVFP4": "modelopt nvfp4",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": "modelopt fp8",
    "nvidia/Qwen3-235B-A22B-NVFP4": "modelopt nvfp4",
    "nvidia/Qwen3.5-397B-A17B-NVFP4": "modelopt nvfp4",
    "nvidia/Qwen3.6-27B-NVFP4": "modelopt fp8/nvfp4",
}
"""Releases that NVIDIA's Model Optimizer quantised. Several say so in hf_quant_config.json only."""


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


@pytest.mark.parametrize(
    ("name", "latent"),
    [
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 1024),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 2048),
    ],
)
def test_latents_of_experts(name: str, latent: int) -> None:
    config = ours(name)
    assert isinstance(config, ModelConfig)
    found = {each.feed_forward.experts for each in config.layers} - {None}
    assert {each.latent for each in found if each is not None} == {latent}


def test_types_of_encoders_are_known() -> None:
    """Else the test above would compare little."""
    assert {"bert", "roberta"} <= ENCODER_TYPES.keys()
    assert len(READ) > 50
