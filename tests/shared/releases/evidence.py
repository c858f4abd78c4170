"""Which files of releases the tests read for each family of models: `docs/reference/families.md`
shows it. Values are keys of FAMILIES; empty: a family of its own, which is served by transformers
or not at all."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.families.family import Family, TowerFamily
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.prepare.hub_config import classes_of
from tests.shared.releases.reading import READ, RELEASES, our_reading

VOCABULARIES = {
    "bert-bge": "",
    "command-r": "cohere",
    "deepseek-coder": "llama",
    "deepseek-llm": "llama",
    "falcon": "",
    "gemma-4": "gemma4",
    "gpt-2": "",
    "llama-bpe": "llama",
    "llama-spm": "llama",
    "mpt": "",
    "phi-3": "phi3",
    "qwen2": "qwen2",
    "qwen35": "qwen3_5",
    "refact": "",
    "starcoder": "",
}
"""GGUF files of a vocabulary, with test vectors."""
TOKENIZERS = {
    "deepseek_v3": "deepseek_v3",
    "gemma3": "gemma3",
    "gptoss": "gpt_oss",
    "llama3_1": "llama",
    "qwen3": "qwen3",
}
"""Folders with a tokenizer.json."""
TEMPLATES = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "",
    "Bielik-11B-v3.0-Instruct": "",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "cohere2_moe",
    "CohereForAI-c4ai-command-r-plus-tool_use": "cohere",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere2",
    "GLM-4.6": "glm4_moe",
    "GLM-4.7-Flash": "glm4_moe_lite",
    "GigaChat3-10B-A1.8B": "deepseek_v3",
    "GigaChat3.1-10B-A1.8B": "deepseek_v3",
    "HuggingFaceTB-SmolLM3-3B": "smollm3",
    "Kimi-K2-Instruct": "deepseek_v3",
    "Kimi-K2-Thinking": "deepseek_v3",
    "Kimi-K3": "",
    "LFM2-8B-A1B": "lfm2_moe",
    "LFM2.5-8B-A1B": "lfm2_moe",
    "LFM2.5-Instruct": "lfm2",
    "MiMo-VL": "",
    "MiniMax-M1": "",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron_h",
    "NVIDIA-Nemotron-Nano-v2": "nemotron_h",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "llama",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "llama",
    "Qwen-QwQ-32B": "qwen2",
    "Qwen-Qwen2.5-7B-Instruct": "qwen2",
    "Qwen-Qwen3-0.6B": "qwen3",
    "Qwen3-Coder": "qwen3_moe",
    "Qwen3.5-4B": "qwen3_5",
    "Reka-Edge": "",
    "Spark2.5": "",
    "StepFun3.5-Flash": "",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "llama",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "qwen2",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_v4",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "fireworks-ai-llama-3-firefunction-v2": "llama",
    "google-gemma-2-2b-it": "gemma2",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "google-gemma-4-31B-it": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "granitemoehybrid",
    "ibm-granite-granite-4.1": "",
    "inclusionai-ling-3.0-flash": "",
    "llama-cpp-deepseek-r1": "deepseek_v3",
    "llama-cpp-rwkv-world": "",
    "meetkai-functionary-medium-v3.1": "llama",
    "meetkai-functionary-medium-v3.2": "llama",
    "meta-llama-Llama-3.1-8B-Instruct": "llama",
    "meta-llama-Llama-3.2-3B-Instruct": "llama",
    "meta-llama-Llama-3.3-70B-Instruct": "llama",
    "microsoft-Phi-3.5-mini-instruct": "phi3",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "deepseek_v3",
    "muse-glimmer": "",
    "openai-gpt-oss-120b": "gpt_oss",
    "openbmb-MiniCPM5-1B": "",
    "poolside-Laguna-S-2.1": "laguna",
    "poolside-Laguna-XS-2.1": "laguna",
    "poolside-Laguna-XS.2": "laguna",
    "tencent-Hy3": "hy_v3",
    "unsloth-Apriel-1.5": "",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "upstage-Solar-Open-100B": "solar_open",
}
"""Chat templates."""
WEIGHTS = {
    "SmolLM2-135M": ("llama", "tests/worker/models/test_parity_default.py"),
    "Gemma-3-270M": ("gemma3", "tests/system/releases/test_generation.py"),
    "Qwen2.5-Coder-0.5B": ("qwen2", "tests/system/releases/test_generation.py"),
    "Whisper base": ("whisper", "tests/system/releases/test_speech.py"),
}
"""Models that tests compute with, beside transformers: the family, and one of the tests."""


def configs_of(family: Family | TowerFamily) -> list[str]:
    """Releases whose config.json is read as this family's: of a decoder, also behind a tower."""
    if isinstance(family, TowerFamily):
        classes = set(family.hub_classes)
        fields = {name: Fields(RELEASES[name]["config"], name) for name in READ}
        return [name for name, each in fields.items() if classes & set(classes_of(each))]
    readings = ((name, our_reading(name)) for name in READ)
    return [
        name
        for name, each in readings
        if isinstance(each, ModelConfig) and each.architecture == family.name
    ]


def files_of(family: str, files: Mapping[str, str]) -> list[str]:
    return [name for name, each in files.items() if each == family]
