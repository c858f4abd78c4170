"""Families of models in GGUF files, converted as llama.cpp's converter does it, against
transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import torch

from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.model.prepared_model import WeightFiles
from penstock.model.rope_spec import RopeSpec
from penstock.prepare.gguf_config import read_config
from penstock.prepare.hub_config import read_config as read_hub
from tests.worker.checkpoints import load_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models import gemma_gguf, gguf_writing
from tests.worker.models import gguf_keys as keys
from tests.worker.models import newer_gguf_keys as newer
from tests.worker.models.case_sizes import GROUPED, LONGROPE, SIZES, WHOLE
from tests.worker.models.family_cases import CASES
from tests.worker.models.gguf_writing import Conversion, write
from tests.worker.models.parity import compare
from tests.worker.models.test_parity_families import make_theirs, random_prompts

pytestmark = pytest.mark.slow

ARCH = gguf.MODEL_ARCH
CONVERSIONS = {
    "gemma": Conversion(ARCH.GEMMA, plus_one=True, usual_keys=False),
    "gemma2": Conversion(ARCH.GEMMA2, keys.gemma2, plus_one=True, usual_keys=False),
    "gemma3-of-six": Conversion(ARCH.GEMMA3, keys.windows, plus_one=True),
    "gemma3n": Conversion(ARCH.GEMMA3N, gemma_gguf.gemma3n, own_parts=gemma_gguf.parts),
    "gemma4-alike": Conversion(ARCH.GEMMA4, gemma_gguf.gemma4, own_parts=gemma_gguf.parts),
    "gemma4-shared-kv": Conversion(ARCH.GEMMA4, gemma_gguf.gemma4, own_parts=gemma_gguf.parts),
    "gemma4-unified": Conversion(ARCH.GEMMA4, gemma_gguf.gemma4, own_parts=gemma_gguf.parts),
    "gemma4-experts": Conversion(ARCH.GEMMA4, gemma_gguf.gemma4, own_parts=gemma_gguf.parts),
    "phi3-window": Conversion(ARCH.PHI3, keys.phi3, usual_keys=False),
    "phi4-mini-partial-longrope": Conversion(ARCH.PHI3, keys.phi3, usual_keys=False),
    "phimoe-own-jitter": Conversion(ARCH.PHIMOE, keys.phimoe, usual_keys=False),
    "smollm3": Conversion(ARCH.SMOLLM3, permuted=True),
    "olmo2": Conversion(ARCH.OLMO2),
    "granite": Conversion(ARCH.GRANITE, keys.granite, permuted=True),
    "glm4": Conversion(ARCH.GLM4),
    "cohere": Conversion(ARCH.COMMAND_R, keys.cohere),
    "cohere2": Conversion(ARCH.COHERE2, keys.cohere2),
    "starcoder2-all": Conversion(ARCH.STARCODER2),
    "stablelm": Conversion(
        ARCH.STABLELM,
        lambda writer, config: writer.add_parallel_residual(config.use_parallel_residual),
    ),
    "qwen3-moe-all": Conversion(ARCH.QWEN3MOE, keys.experts),
    "qwen3-vl-moe-text": Conversion(ARCH.QWEN3VLMOE, keys.behind_a_tower),
    "nemotron": Conversion(ARCH.NEMOTRON, keys.nemotron, plus_one=True),
    "arcee-plain": Conversion(ARCH.ARCEE, permuted=True),
    "apertus-plain": Conversion(ARCH.APERTUS, reads=keys.apertus),
    "bitnet": Conversion(ARCH.BITNET, keys.bitnet, own_parts=gguf_writing.of_bitnet),
    "bitnet-silu": Conversion(ARCH.BITNET, keys.bitnet, own_parts=gguf_writing.of_bitnet),
    "olmoe": Conversion(ARCH.OLMOE, keys.some_experts),
    "exaone4-windows": Conversion(ARCH.EXAONE4, keys.exaone4),
    "ernie45-plain": Conversion(ARCH.ERNIE4_5),
    "ernie45-moe": Conversion(ARCH.ERNIE4_5_MOE, keys.ernie45_moe, own_parts=gguf_writing.of_ernie),
    "dots1-no-window": Conversion(ARCH.DOTS1, keys.dots1),
    "exaone-moe": Conversion(ARCH.EXAONE_MOE, keys.exaone_moe),
    "deepseek-v2-lite": Conversion(ARCH.DEEPSEEK2, keys.deepseek, latents="one matrix"),
    "deepseek-v3-plain": Conversion(ARCH.DEEPSEEK2, keys.deepseek, latents="by head"),
    "glm47-flash": Conversion(ARCH.DEEPSEEK2, keys.deepseek, latents="by head"),
    "mistral4": Conversion(ARCH.MISTRAL4, keys.mistral4, latents="by head"),
    "laguna": Conversion(ARCH.STEP35, keys.laguna, called="laguna"),
    "mimo-v2-flash-unscaled": Conversion(ARCH.MIMO2, keys.mimo2, own_parts=gguf_writing.of_mimo),
    "deepseek-v32": Conversion(ARCH.GLM_DSA, keys.glm_dsa, latents="by head", called="deepseek32"),
    "minicpm3-released": Conversion(
        ARCH.MINICPM3, newer.minicpm3, latents="one matrix", usual_keys=False
    ),
    "hy-v3": Conversion(ARCH.DOTS1, newer.hy_v3, own_parts=gguf_writing.of_hy_v3, called="hy_v3"),
    "solar-open": Conversion(ARCH.GLM4_MOE, newer.solar_open),
    "glm5": Conversion(ARCH.GLM_DSA, keys.glm_dsa, latents="by head"),
    "glm45": Conversion(ARCH.GLM4_MOE, keys.glm45),
    "minimax-m2": Conversion(ARCH.MINIMAXM2, keys.minimax_m2),
    "gpt-oss": Conversion(ARCH.GPT_OSS, keys.gpt_oss, alternating=True),
    "mixtral-no-window": Conversion(ARCH.LLAMA, permuted=True),
    "mixtral-one-by-one": Conversion(ARCH.LLAMA, permuted=True, own_parts=gguf_writing.one_by_one),
    "ministral3": Conversion(ARCH.MISTRAL3, keys.ministral3, permuted=True),
    "mistral-small3": Conversion(ARCH.MISTRAL3, permuted=True),
    "qwen2-moe": Conversion(ARCH.QWEN2MOE, keys.qwen2_moe),
    "granite-moe": Conversion(
        ARCH.GRANITE_MOE, keys.granite_moe, permuted=True, own_parts=gguf_writing.of_granite
    ),
    "granite-moe-shared": Conversion(
        ARCH.GRANITE_MOE, keys.granite4, permuted=True, own_parts=gguf_writing.of_granite
    ),
    "granite-moe-shared-expert": Conversion(
        ARCH.GRANITE_MOE, keys.granite_moe, permuted=True, own_parts=gguf_writing.of_granite
    ),
    "granite-swa-one-base": Conversion(
        ARCH.GRANITE,
        newer.granite_swa,
        permuted=True,
        own_parts=gguf_writing.of_granite_swa,
        called="granite_swa",
    ),
    "granite-moe-swa-one-base": Conversion(
        ARCH.GRANITE_MOE,
        newer.granite_swa,
        permuted=True,
        own_parts=gguf_writing.of_granite_swa,
        called="granite_swa",
    ),
    "granite4-without-mamba": Conversion(
        ARCH.GRANITE, keys.granite4, permuted=True, own_parts=gguf_writing.of_granite
    ),
    "glm-whole": Conversion(ARCH.CHATGLM, usual_keys=False),
    "seed-oss-plain": Conversion(ARCH.SEED_OSS),
    "olmo3": Conversion(ARCH.OLMO2, keys.olmo3),
    "llama4-of-four": Conversion(ARCH.LLAMA4, keys.llama4, own_parts=gguf_writing.of_llama4),
    "hunyuan-dense": Conversion(ARCH.HUNYUAN_DENSE, keys.hunyuan),
    "hunyuan-moe": Conversion(ARCH.HUNYUAN_MOE, keys.hunyuan),
    "jais2": Conversion(ARCH.JAIS2),
    "phi2": Conversion(ARCH.PHI2),
    "olmo1": Conversion(ARCH.OLMO, keys.olmo1, permuted=True),
    "olmo1-bounded": Conversion(ARCH.OLMO, keys.olmo1, permuted=True),
    "dbrx": Conversion(ARCH.DBRX, keys.dbrx, own_parts=gguf_writing.of_dbrx),
    "trinity": Conversion(ARCH.AFMOE, keys.afmoe, own_parts=gguf_writing.of_trinity),
    "muse-glimmer": Conversion(
        ARCH.AFMOE,
        newer.muse_glimmer,
        permuted=True,
        own_parts=gguf_writing.of_muse,
        called="muse-glimmer",
    ),
    "youtu": Conversion(ARCH.DEEPSEEK2, keys.youtu, latents="by head"),
    "mellum2-sparse": Conversion(ARCH.QWEN3MOE, keys.mellum, called="mellum"),
    "north-mini-code": Conversion(ARCH.GLM4_MOE, keys.cohere2_moe, called="cohere2moe"),
    "llama-plain": Conversion(ARCH.LLAMA, permuted=True),
    "qwen2-plain": Conversion(ARCH.QWEN2),
    "qwen3-plain": Conversion(ARCH.QWEN3),
}
"""Conversions by case; those that aren't in CASES are in OWN."""
OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3-of-six": ("Gemma3", CASES["gemma2"][1] | {"num_hidden_layers": 6}),
    "gemma2": ("Gemma2", CASES["gemma2"][1] | {"query_pre_attn_scalar": 16}),
    "starcoder2-all": ("Starcoder2", {**CASES["starcoder2"][1], "sliding_window": None}),
    "qwen3-moe-all": ("Qwen3Moe", {**CASES["qwen3-moe"][1], "mlp_only_layers": []}),
}
OWN["qwen3-vl-moe-text"] = OWN["qwen3-moe-all"]
OWN |= {
    "arcee-plain": ("Arcee", {**CASES["arcee"][1], "mlp_bias": False}),
    "apertus-plain": (
        "Apertus",
        CASES["apertus"][1] | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "bitnet-silu": ("BitNet", CASES["bitnet"][1] | {"hidden_act": "silu"}),
    "ernie45-plain": ("Ernie4_5", {**CASES["ernie45"][1], "use_bias": False}),
    "llama-plain": ("Llama", GROUPED),
    "qwen2-plain": ("Qwen2", WHOLE),
    "qwen3-plain": ("Qwen3", GROUPED),
}
OWN |= {
    "mixtral-no-window": ("Mixtral", {**CASES["mixtral"][1], "sliding_window": None}),
    "mistral-small3": ("Mistral", {**CASES["mistral-window"][1], "sliding_window": None}),
    "granite-moe-shared": (
        "GraniteMoeHybrid",
        {
            **CASES["granite4-without-mamba"][1],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 56,
        },
    ),
    "glm-whole": ("Glm", WHOLE | {"pad_token_id": 0}),
    "seed-oss-plain": ("SeedOss", {**CASES["seed-oss"][1], "attention_out_bias": False}),
    "llama4-of-four": (
        "Llama4",
        {
            **CASES["llama4"][1],
            "attention_chunk_size": 8192,
            "attn_scale": 0.1,
            "floor_scale": 8192,
        },
    ),
}
OWN |= {
    "granite-swa-one-base": (
        "GraniteSWA",
        {**CASES["granite-swa"][1], "layer_rope_theta": [0, 10_000.0, 10_000.0, 0, 10_000.0]},
    ),
    "granite-moe-swa-one-base": (
        "GraniteMoeSWA",
        {**CASES["granite-moe-swa"][1], "layer_rope_theta": [10_000.0, 0, 10_000.0]},
    ),
    "minicpm3-released": (
        "MiniCPM3",
        CASES["minicpm3"][1]
        | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "v_head_dim": 18},
    ),
}
OWN["mimo-v2-flash-unscaled"] = (
    "MiMoV2Flash",
    {**CASES["mimo-v2-flash"][1], "routed_scaling_factor": 1.0},
)
OWN["phimoe-own-jitter"] = ("Phimoe", {**CASES["phimoe"][1], "router_jitter_noise": 0.01})
OWN["dots1-no-window"] = ("Dots1", {**CASES["dots1"][1], "sliding_window": None})
OWN["mellum2-sparse"] = ("Mellum", {**CASES["mellum2"][1], "mlp_layer_types": ["sparse"] * 3})
OWN["mixtral-one-by-one"] = OWN["mixtral-no-window"]
OWN["deepseek-v3-plain"] = ("DeepseekV3", {**CASES["deepseek-v3"][1], "attention_bias": False})
NOT_ON_CPU = ("deepseek-v3-plain",)
"""A latent has 40 numbers."""
ON_DEVICE = ("gemma4-shared-kv", "gpt-oss", "deepseek-v2-lite", "cohere2", "olmoe", "llama-plain")
"""Cases that the CUDA kernels compute, in Triton's interpreter."""
OWN["gemma3-of-six"][1]["query_pre_attn_scalar"] = 16


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CONVERSIONS)
def test_a_gguf_file_equals_transformers(case: str, tmp_path: Path) -> None:
    theirs = make_theirs(*(OWN.get(case) or CASES[case]))
    path = tmp_path / "model.gguf"
    write(path, theirs, CONVERSIONS[case])
    config = read_config(GGUFFile(path))
    files = WeightFiles(format="gguf", files=(str(path),), dtype="F32")
    positions = SIZES["max_position_embeddings"]
    model = load_model(config, files, torch.float32, positions)
    prompts = [prompt for prompt in random_prompts() if len(prompt) < 100]
    assert compare(model, theirs, prompts, 16) >= len(prompts)
    if case in NOT_ON_CPU:
        return
    on_cpu = CPUModel(config, files, "float32", positions=positions)
    assert compare(on_cpu, theirs, prompts[::2], 8) >= len(prompts[::2])


ORIGINAL = {"original_max_position_embeddings": 64}
BEYOND = {
    "phi4-mini-partial-longrope": ("Phi3", {"rope_parameters": LONGROPE | ORIGINAL} | ORIGINAL),
    "phimoe-own-jitter": ("Phimoe", {}),
    "llama4-of-four": ("Llama4", {"max_position_embeddings": 20_000}),
    "ministral3": ("Ministral3", {}),
    "olmo3": ("Olmo3", {}),
    "exaone4-windows": ("Exaone4", {}),
    "exaone-moe": ("ExaoneMoe", {}),
    "trinity": ("Afmoe", {}),
    "mellum2-sparse": ("Mellum", {}),
    "laguna": ("Laguna", {}),
    "mimo-v2-flash-unscaled": ("MiMoV2Flash", {}),
}
"""Cases with settings that short prompts don't show, or that the file says in other words."""


@pytest.mark.parametrize("case", BEYOND)
def test_settings_are_those_of_config_json(case: str, tmp_path: Path) -> None:
    family, further = BEYOND[case]
    theirs = make_theirs(family, (OWN.get(case) or CASES[case])[1] | further)
    path = tmp_path / "model.gguf"
    write(path, theirs, CONVERSIONS[case])
    ours = read_config(GGUFFile(path))
    architectures = {"architectures": [f"{family}ForCausalLM"]}
    hub = read_hub(Fields(theirs.config.to_dict() | architectures, "config.json"))
    assert ours.layers == hub.layers
    for found, true in zip(ours.ropes, hub.ropes, strict=True):
        assert rounded(found) == rounded(true)


def rounded(rope: RopeSpec) -> RopeSpec:
    """With float32's numbers, as the file has them, and defaults for what isn't used."""
    scaling = rope.scaling
    if scaling is not None:
        by = float(f"{scaling.attention_factor:.6g}")
        scaling = msgspec.structs.replace(scaling, attention_factor=by)
        if scaling.kind == "longrope":
            scaling = msgspec.structs.replace(scaling, factor=1.0)
    growth = float(f"{rope.query_growth:.6g}")
    length = rope.query_growth_length if growth else 8192
    return msgspec.structs.replace(
        rope, scaling=scaling, query_growth=growth, query_growth_length=length
    )
