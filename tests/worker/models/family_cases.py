"""Settings of tiny models of each family, for transformers' configuration classes."""

from __future__ import annotations

from typing import Any

from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.prepare.hub_config import read_config
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.dense_cases import DENSE
from tests.worker.models.expert_cases import EXPERTS
from tests.worker.models.latent_cases import LATENT

CASES: dict[str, tuple[str, dict[str, Any]]] = DENSE | EXPERTS | LATENT


ON_DEVICE = (
    "gemma2",
    "mixtral",
    "olmo3",
    "gemma3-stretched",
    "granite-biases",
    "gpt-oss",
    "qwen3-moe",
    "olmoe",
    "granite-moe",
    "glm45",
    "qwen2-moe",
    "glm45-groups",
    "glm",
    "llama4",
    "smollm3-own-pattern",
    "glm4-a-quarter",
    "cohere2",
    "starcoder2",
    "nemotron",
    "stablelm-parallel",
    "exaone4-windows",
    "arcee",
    "deepseek-v2-lite",
    "deepseek-v3",
    "gemma4-shared-kv",
    "gemma4-experts",
    "gemma4-alike",
    "gemma3n-three-streams",
    "gemma3n",
    "ministral3",
    "llama4-plain",
    "flex-olmo",
    "mistral4",
    "bitnet",
)
"""Cases that the CUDA kernels compute in Triton's interpreter, which is slow. Those that run
without --long (at 0, 2, 5, 10, 13, 18 and 23) have most of the mechanisms."""
ALONE = (
    *("gemma4", "gemma3n", "mimo-v2", "deepseek-v4", "minimax-m3", "trinity", "laguna"),
    "muse-glimmer",
)
ON_ONE_RANK = tuple(case for case in CASES if case.startswith(ALONE))
"""Cases whose layers ranks can't share."""
BITS_ON_DEVICE = (
    "deepseek-v3",
    "cohere2",
    "gpt-oss",
    "glm45-groups",
    "qwen2-moe",
    "gemma3n",
    "gemma4-shared-kv",
    "llama4",
)
"""Cases whose rows are compared bit by bit on a device."""


HALVES = (
    *("Gemma3", "Gemma3n", "Gemma4", "Llama4", "MiniMaxM3VL", "Qwen3_5", "Qwen3_5Moe"),
    *("Gemma4Unified", "MuseGlimmer", "Step3p7"),
)
"""Families whose decoders transformers calls the text half of a model that sees."""


def config_class(family: str) -> Any:
    """transformers' class of configurations."""
    import transformers

    return getattr(transformers, family + ("TextConfig" if family in HALVES else "Config"))


def read(case: str) -> ModelConfig:
    """The case's model, as our readers understand it."""
    family, settings = CASES[case]
    theirs = config_class(family)(**(SIZES | settings), architectures=[f"{family}ForCausalLM"])
    return read_config(Fields(theirs.to_dict(), case))


RANKS_ON_DEVICE = (
    "gpt-oss",
    "qwen2-moe",
    "deepseek-v2-lite",
    "gemma2",
    "olmo3",
    "starcoder2",
    "stablelm-parallel",
    "glm4-a-quarter",
)
"""Cases that two ranks compute on a device. The first three run without --long."""
