"""The reference's page about families of models: which backends have each, and what is tested."""

from __future__ import annotations

from collections import Counter
from typing import Any

import transformers

from penstock.families.family import Family, TowerFamily
from penstock.families.served import AUDIO_FAMILIES, FAMILIES
from penstock.families.vision.served import VISION_FAMILIES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.mechanisms import mechanisms
from penstock.prepare.hub_config import read_config
from penstock_worker.forward.backends import backend_module
from tests.reference.pages import WRITTEN
from tests.reference.registered import unserved_section
from tests.shared.releases.evidence import (
    TEMPLATES,
    TOKENIZERS,
    VOCABULARIES,
    WEIGHTS,
    configs_of,
    files_of,
)
from tests.shared.releases.reading import our_reading
from tests.worker.audio.hearing_cases import CASES as HEARD
from tests.worker.models.coverage import SHOWN, coverage
from tests.worker.models.ling3 import LING3
from tests.worker.models.twins import TWINS
from tests.worker.vision.mllama_cases import OF_MLLAMA
from tests.worker.vision.vision_cases import CASES as SEEN

Coverage = dict[str, dict[str, Counter[str]]]
"""How many models the tests compute: by backend, by SHOWN, by the family's name in transformers."""
TOWER_CLASS = "ForConditionalGeneration"
"""How the names of their classes end."""
TOWER_HEAD = "| models | class in config.json | decoders | tests/releases |\n|---|---|---|---|\n"
BACKENDS = ("cpu", "triton", "reference")
TESTED = ("cpu", "triton")
"""Backends whose tests are counted: the third is what they are compared with."""
UNRELEASED = "†"
CONFIG_CLASSES = {
    f"{name}ForCausalLM": f"{name}TextConfig"
    for name in (
        "Gemma3",
        "Gemma3n",
        "Gemma4",
        "Gemma4Unified",
        "MiniMaxM3VL",
        "MuseGlimmer",
        "Qwen3_5",
        "Qwen3_5Moe",
    )
} | {"WhisperForConditionalGeneration": "WhisperConfig"}
"""Where transformers' class of configurations isn't called like the model's."""
FROM_MEMORY = {
    "apertus",
    "bailing_moe_v3",
    "bamba",
    "bitnet",
    "flex_olmo",
    "laguna",
    "mistral4",
    "hy_v3",
    "dots1",
    "solar_open",
    "cwm",
    "baichuan",
    "granitemoeshared",
    "falcon_mamba",
    "jamba",
    "kimi_linear",
    "mamba",
    "mamba2",
    "muse_glimmer",
    "nanbeige",
    "olmo_hybrid",
    "cohere2_moe",
    "granitemoe_swa",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hyperclovax",
    "jais2",
    "nanochat",
    "olmo",
    "phi",
    "vaultgemma",
    "youtu",
}
"""Families of which no release's config.json could be had; settings were written from memory."""
GGUF_OF = {
    "bamba": "granitehybrid",
    "chatglm": "chatglm",
    "gemma4_unified": "gemma4",
    "granitemoeshared": "granitemoe",
    "internlm3": "llama",
    "solar_open": "glm4moe",
}
"""The architecture in GGUF files of families whose files another one reads: they say what
differs."""
TOWERS_FROM_MEMORY = {
    "aya_vision",
    "cohere2_vision",
    "deepseek_ocr",
    "deepseek_ocr2",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "gemma3n",
    "glm4v",
    "glm_ocr",
    "granite_speech",
    "janus",
    "lfm2_vl",
    "llava_next",
    "minicpmv",
    "molmo2",
    "paddleocr_vl",
    "phi4_multimodal",
    "qianfan_ocr",
    "qwen2_5_omni",
    "qwen3_asr",
    "qwen3_omni",
    "step3p7",
}
"""Families that see or hear, whose configs were written from memory: no release's could be had."""
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "Glm4MoeForCausalLM": {"head_dim": 128},
    "Dots1ForCausalLM": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "MiniMaxM3VLForCausalLM": {"layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57},
    "Lfm2ForCausalLM": {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "GraniteMoeHybridForCausalLM": {
        "layer_types": [*["mamba"] * 5, "attention", "mamba", "mamba"] * 4
    },
}
"""That all releases have, and transformers' defaults lack."""


def families_page() -> str:
    """Every family of decoders, by its usual settings: transformers' defaults."""
    shown = coverage()
    tested = ", ".join(TESTED)
    return (
        f"# Families of models\n\n{WRITTEN}\n"
        "`auto` selects the first backend that can serve a model on the machine: `triton` needs a "
        "GPU, `cpu` is the fast one on CPUs, `reference` is slow and serves all. All three serve "
        "every family below with its usual settings, and read its GGUF files, unless a row says "
        "otherwise; `penstock doctor MODEL` and the log say which one serves a model, and what the "
        "others lack.\n\n"
        f"`tested` counts [what tests compute](#what-is-tested) on {tested}: {'/'.join(SHOWN)}. "
        "`releases` counts [files of releases](#what-is-tested) that tests read: "
        f"config/tokenizer/template/weights. {UNRELEASED}: no release's config.json could be had, "
        "so its settings were written from memory.\n\n"
        "| models | class in config.json | but | tested | releases |\n|---|---|---|---|---|\n"
        + "".join(_row(key, shown) for key in FAMILIES)
        + _tested()
        + _seeing()
        + _hearing()
        + _comparing()
        + unserved_section()
    )


def _watching() -> list[str]:
    """Families of models that take videos, as people know them."""
    return [family.known_as for family in VISION_FAMILIES.values() if family.videos is not None]


def _seeing() -> str:
    """The families of models that see, and what tests show of each."""
    text = (
        "\n## Models that see\n\n"
        "[Pictures](../guides/media.md) are taken on every backend, on `triton` with one rank. An "
        "unknown tower is left out, as with `--language-model-only`. Tests compare each case with "
        "transformers on `reference` and `cpu`, some on `triton` in its interpreter, and read "
        "config.json of releases: the table has their numbers.\n\n"
        f"{', '.join(_watching())} take [videos](../guides/media.md#videos) too.\n\n"
        "[GGUF models with an mmproj file](../guides/media.md#gguf-files) see and hear too. "
        "Llama 3.2 Vision runs on `reference` alone.\n\n"
    )
    cases = [
        case.stands_for or f"{case.family}{TOWER_CLASS}" for case in (SEEN | OF_MLLAMA).values()
    ]
    return text + TOWER_HEAD + "".join(_towered(each, cases) for each in VISION_FAMILIES.values())


def _hearing() -> str:
    """The same of models that hear."""
    both = {name for family in VISION_FAMILIES.values() for name in family.hub_classes}
    families = AUDIO_FAMILIES.values()
    too = [family.known_as for family in families if both.issuperset(family.hub_classes)]
    text = (
        "\n## Models that hear\n\n"
        f"Of the models above, {', '.join(too)} hear, too. All are tested in the same way. "
        "Qwen3-ASR and Granite Speech also [transcribe](../guides/transcription.md).\n\n"
    )
    cases = [case.stands_for or f"{case.family}{TOWER_CLASS}" for case in HEARD.values()]
    alone = [family for family in families if not both.issuperset(family.hub_classes)]
    return text + TOWER_HEAD + "".join(_towered(each, cases) for each in alone)


def _comparing() -> str:
    """The families of models whose pictures have vectors, as texts do."""
    return (
        "\n## Models that make vectors of texts and pictures\n\n"
        "CLIP (`CLIPModel`), SigLIP and SigLIP 2 (`SiglipModel`), on all backends. Tests compare "
        "the vectors with transformers, and the bits of an input alone and in a batch. "
        "[Embeddings](../guides/embeddings.md#models) has the other encoders.\n"
    )


def _towered(family: TowerFamily, cases: list[str]) -> str:
    """A family's row. cases: classes of the tests' models."""
    classes = ", ".join(f"`{name}`" for name in family.hub_classes)
    decoders = ", ".join(dict.fromkeys(half.family.name for half in family.halves.values()))
    count = sum(case in family.hub_classes for case in cases)
    configs = len(configs_of(family)) or "–"
    known = f"{family.known_as}{UNRELEASED if family.name in TOWERS_FROM_MEMORY else ''}"
    return f"| {known} | {classes} | {decoders} | {count}/{configs} |\n"


def _tested() -> str:
    """What the four numbers of a family and a backend mean."""
    return (
        "\n## What is tested\n\n"
        "Tests (`tests/worker/models`) compute tiny models with random weights, each with "
        "different settings of its family.\n\n"
        "| number | meaning |\n|---|---|\n"
        "| float32 parity | `cpu`, like `reference`: prompts' log-probabilities and greedy tokens "
        "are transformers'; `triton`, in its interpreter: logits are those of `reference` |\n"
        "| bits | a row has the same bits alone, in chunks and in a batch |\n"
        "| GGUF | the same from a file that llama.cpp's converter would write |\n"
        "| TP 2 | over two ranks: one worker's bits on `cpu`, the logits of `reference` on "
        "`triton` |\n\n"
        "Of releases (`tests/shared/releases/evidence.py` names the files), config.json is read "
        "with transformers' numbers, a tokenizer gives llama.cpp's ids or streams whole text, a "
        "template transformers' text, and weights transformers' log-probabilities and greedy "
        "tokens.\n"
    )


def _count(family: Family, cases: Counter[str]) -> int:
    """Returns the number of cases of a family, by transformers' names of its models."""
    stems = {
        name.removesuffix(TOWER_CLASS).removesuffix("ForCausalLM") for name in family.hub_classes
    }
    return sum(cases[stem] for stem in stems)


def _row(key: str, shown: Coverage) -> str:
    """A family's row."""
    family = FAMILIES[key]
    needed = mechanisms(_usual(family))
    but = [f"not `{name}`" for name in BACKENDS if not needed <= _mechanisms_of(name)]
    if key in GGUF_OF:
        but.append(f"GGUF: `{GGUF_OF[key]}`")
    elif not family.gguf:
        but.append("no GGUF")
    counts = [
        [_count(family, shown[each].get(what, Counter())) for what in SHOWN] for each in TESTED
    ]
    tested = ["/".join(str(each or "–") for each in row) for row in counts if any(row)]
    classes = ", ".join(f"`{name}`" for name in family.hub_classes)
    known = f"{family.known_as}{UNRELEASED if key in FROM_MEMORY else ''}"
    return (
        f"| {known} | {classes} |{' ' * bool(but)}{', '.join(but)} "
        f"| {' '.join(tested)} | {'/'.join(_of_releases(key))} |\n"
    )


def _of_releases(key: str) -> list[str]:
    """What of a family's releases the tests read."""
    tokenizers = [*files_of(key, TOKENIZERS), *files_of(key, VOCABULARIES)]
    weights = files_of(key, {name: family for name, (family, _) in WEIGHTS.items()})
    counts = (len(configs_of(FAMILIES[key])), len(tokenizers), len(files_of(key, TEMPLATES)))
    return [*(str(count or "–") for count in counts), ",".join(weights) or "–"]


def _mechanisms_of(backend: str) -> frozenset[str]:
    """Imported when it is asked for: Triton reads its environment when it is imported."""
    has: frozenset[str] = backend_module(backend).MECHANISMS
    return has


def _usual(family: Family) -> ModelConfig:
    name = family.hub_classes[0]
    twin = next((each for each in [*TWINS.values(), LING3] if each.architecture == name), None)
    releases = [] if twin is None else configs_of(family)
    if twin is not None and not releases:
        own = getattr(transformers, f"{twin.computed_by}Config")()
        said = own.to_dict() | {"architectures": [name]} | twin.says(own)
        return read_config(Fields(said, name))
    if releases:
        found = our_reading(releases[0])
        if not isinstance(found, ModelConfig):
            raise TypeError(f"{name} is no decoder's")
        return found
    kind = CONFIG_CLASSES.get(name, name.replace("ForCausalLM", "Config"))
    config: Any = getattr(transformers, kind)(architectures=[name], **OWN_SETTINGS.get(name, {}))
    return read_config(Fields(config.to_dict(), name))
