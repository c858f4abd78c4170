"""DeepSeek V4's checkpoints in the names and formats of releases: FP8 in blocks with scales of a
byte, beside experts in FP8, FP4 or NVFP4. They compute what their weights mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from penstock.prepare import load_manifest, prepare
from testing.tiny_models import write_hub_folder
from tests.worker.models.family_cases import CASES
from tests.worker.models.quantised_twins import logits_as_meant, logits_as_stored
from tests.worker.models.test_parity_families import make_theirs, random_prompts
from tests.worker.quantised_writers import Written, fp8, mxfp4, nvfp4

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

INNER = {"moe_intermediate_size": 32, "intermediate_size": 32}
WIDE = INNER | {"hidden_size": 96, "vocab_size": 700, "q_lora_rank": 32}
BLOCK = (40, 32)
FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "scale_fmt": "ue8m0",
    "weight_block_size": [*BLOCK],
}
NVFP4 = FP8 | {
    "quant_algo": "MIXED_PRECISION",
    "group_size": 16,
    "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
    "moe_quant_algo": "NVFP4",
    "quantized_layers": {"layers.0.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16}},
}
QUANTISED = re.compile(r"\.attn\.(indexer\.)?w(q_a|q_b|kv|o_a|o_b)\.weight$|shared_experts\.w.\.")
"""Names of what releases have in FP8: not compressors, routers, norms, or either end."""


def fp8_of_v4(weight: Tensor) -> Written:
    tensors, meant = fp8(BLOCK, name="scale", power=True, exponents=True)(weight)
    return tensors | {"scale": tensors["scale"].view(torch.float8_e8m0fnu)}, meant


def fp4_of_v4(weight: Tensor) -> Written:
    tensors, meant = mxfp4(weight)
    scale = tensors["weight_scale"].view(torch.float8_e8m0fnu)
    return {"weight": tensors["weight_packed"].view(torch.int8), "scale": scale}, meant


@pytest.mark.parametrize(
    ("settings", "expert_dtype", "experts"),
    [(FP8, "fp8", fp8_of_v4), (FP8, "fp4", fp4_of_v4), (NVFP4, "fp4", nvfp4(modelopt=True))],
    ids=["fp8", "fp4", "nvfp4"],
)
def test_quantised_v4_computes_what_its_weights_mean(
    settings: dict[str, object],
    expert_dtype: str,
    experts: Callable[[Tensor], Written],
    tmp_path: Path,
) -> None:
    family, own = CASES["deepseek-v4"]
    folder, twin = tmp_path / "model", tmp_path / "twin.safetensors"
    write_hub_folder(folder)
    make_theirs(family, own | WIDE).save_pretrained(folder)
    tensors, plain, changed = {}, {}, 0
    for name, weight in load_file(folder / "model.safetensors").items():
        of_expert = ".experts." in name
        if not of_expert and not QUANTISED.search(name):
            tensors[name] = plain[name] = weight
            continue
        parts, plain[name] = (experts if of_expert else fp8_of_v4)(weight.float())
        module = name.removesuffix("weight")
        tensors |= {f"{module}{part}": each.contiguous() for part, each in parts.items()}
        changed += 1
    # Of 4 layers: 5 of attention, 8 experts and a shared one, and 2 indices.
    assert changed == 4 * (5 + 3 * 9) + 2
    save_file({name: each.clone() for name, each in plain.items()}, twin)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"quantization_config": settings, "expert_dtype": expert_dtype}
    (folder / "config.json").write_text(json.dumps(config))
    prepared = load_manifest(prepare(str(folder), cache_dir=str(tmp_path / "cache")))
    prompt = random_prompts()[7]
    meant = logits_as_meant(prepared, twin, prompt)
    off = (logits_as_stored(prepared, prompt) - meant).abs().max()
    assert 0 < off < 0.01 * meant.std()
