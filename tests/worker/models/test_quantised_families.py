"""Quantised checkpoints of models whose matrices are put together when they are read: of latents
with an index, and of values that are shorter than keys. They compute what their weights mean."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from penstock.prepare import load_manifest, prepare
from testing.tiny_models import write_hub_folder
from tests.worker.models.family_cases import CASES
from tests.worker.models.quantised_twins import logits_as_meant
from tests.worker.models.test_parity_families import make_theirs, random_prompts
from tests.worker.quantised_cases import CASES as METHODS

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

WIDE = {"hidden_size": 96, "intermediate_size": 96, "moe_intermediate_size": 32, "vocab_size": 700}
PLAIN = re.compile(r"embed_tokens|lm_head|norm|mlp\.gate\.|weights_proj")
"""Names of what releases leave unquantised."""


@pytest.mark.parametrize(
    ("model", "method", "quantised"),
    [
        ("mimo-v2-flash", "FP8, blocks", ("v_proj", "o_proj")),
        ("mimo-v2-flash", "NVFP4 of Model Optimizer", ("v_proj", "o_proj")),
        ("deepseek-v32", "FP8, blocks", ("indexer.wq_b", "kv_b_proj", "q_b_proj")),
        ("glm5", "NVFP4 of Model Optimizer", ("indexer.wk", "kv_a_proj_with_mqa", "q_b_proj")),
    ],
)
def test_a_quantised_family_computes_what_its_weights_mean(
    model: str, method: str, quantised: tuple[str, ...], tmp_path: Path
) -> None:
    """quantised: some of the modules that are."""
    family, settings = CASES[model]
    folder, twin = tmp_path / "model", tmp_path / "twin"
    write_hub_folder(folder)
    make_theirs(family, settings | WIDE | {"q_lora_rank": 32}).save_pretrained(folder)
    case, tensors, plain, changed = METHODS[method], {}, {}, []
    for name, weight in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        wide = weight.dim() == 2 and weight.shape[0] % 8 == 0 and weight.shape[1] % 32 == 0
        if PLAIN.search(name) or not wide:
            plain[name] = tensors[name] = weight
            continue
        parts, plain[name] = case.writer(weight.float())
        tensors |= {f"{module}.{part}": each for part, each in parts.items()}
        changed.append(module)
    for end in quantised:
        assert any(each.endswith(end) for each in changed), end
    config = json.loads((folder / "config.json").read_text())
    twin.mkdir()
    save_file({name: each.clone() for name, each in plain.items()}, twin / "model.safetensors")
    config["quantization_config"] = case.settings
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors"
    )
    prepared = load_manifest(prepare(str(folder), cache_dir=str(tmp_path / "cache")))
    logits_as_meant(prepared, twin / "model.safetensors", random_prompts()[4])
