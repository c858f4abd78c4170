"""Models with recurrent layers from quantised checkpoints, against the same weights in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.prepare import load_manifest, prepare
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.recurrent.mixers import load_mixer
from penstock_worker.layers.reference_ops import ReferenceOps
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.shard import shard_of
from penstock_worker.weights.opening import open_weights
from testing.tiny_models import write_hub_folder
from tests.worker.checkpoints import hub_model
from tests.worker.models.recurrent_cases import RECURRENT_CASES
from tests.worker.models.recurrent_runs import RecurrentRun
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_recurrent_models import POSITIONS, prompts
from tests.worker.quantised_cases import CASES

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

WIDE = {"hidden_size": 96, "vocab_size": 700}
METHODS = (
    "AWQ",
    pytest.param("GPTQ, first format", marks=pytest.mark.long),
    pytest.param("W4A16", marks=pytest.mark.long),
    pytest.param("INT8, asymmetric", marks=pytest.mark.long),
    "FP8, blocks",
)
MODELS = {
    "lfm2": ("conv.in_proj", "conv.out_proj", "q_proj", "w1", "w2"),
    "qwen3-next": ("in_proj_qkvz", "linear_attn.out_proj", "q_proj", "o_proj"),
    "qwen35": ("in_proj_qkv", "in_proj_z", "q_proj", "o_proj"),
    "granite-hybrid": ("mamba.in_proj", "mamba.out_proj", "o_proj"),
}
"""With what is quantised, by the end of a module's name, where its sizes allow it."""


def fits(shape: torch.Size) -> bool:
    """Whether all methods can have such a matrix."""
    return len(shape) == 2 and shape[0] % 8 == 0 and shape[1] % 32 == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_a_quantised_recurrent_model_computes_what_its_weights_mean(
    model: str, method: str, tmp_path: Path
) -> None:
    family, settings = RECURRENT_CASES[model]
    folder, twin = tmp_path / "model", tmp_path / "twin"
    write_hub_folder(folder)
    wide = {"linear_value_head_dim": 32} if "linear_value_head_dim" in settings else {}
    make_theirs(family, settings | WIDE | wide).save_pretrained(folder)
    case, tensors, plain, changed = CASES[method], {}, {}, 0
    for name, weight in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith(MODELS[model]) or not fits(weight.shape):
            plain[name] = tensors[name] = weight
            continue
        parts, plain[name] = case.writer(weight.float())
        tensors |= {f"{module}.{part}": each for part, each in parts.items()}
        changed += module.partition("layers.")[2].split(".")[1] in ("conv", "linear_attn", "mamba")
    assert changed, "no recurrent layer has a quantised matrix"
    config = json.loads((folder / "config.json").read_text())
    twin.mkdir()
    (twin / "config.json").write_text(json.dumps(config))
    save_file({name: each.clone() for name, each in plain.items()}, twin / "model.safetensors")
    config["quantization_config"] = case.settings
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors"
    )
    prepared = load_manifest(prepare(str(folder), cache_dir=str(tmp_path / "cache")))
    weights = open_weights(prepared.weights, prepared.decoder, torch.float32)
    ours = RecurrentRun(DecoderModel(prepared.decoder, weights, POSITIONS), 1)
    true = RecurrentRun(hub_model(twin, torch.float32, POSITIONS), 1)
    asked = [(0, prompts()[3])]
    assert torch.equal(ours.step(asked)[0], true.step(asked)[0])
    plain_files = WeightFiles(
        format="safetensors", files=(str(twin / "model.safetensors"),), dtype="float32"
    )
    compare_parts(prepared.decoder, prepared.weights, plain_files)


def compare_parts(config: ModelConfig, files: WeightFiles, plain: WeightFiles) -> None:
    """What each of two ranks has of the first recurrent layer's products."""
    numbers = range(config.num_layers)
    layer = next(at for at in numbers if config.layer(at).recurrent is not None)
    whole = {tuple(row.tolist()) for row in products(config, plain, layer, 1, 0)[0]}
    for rank in range(2):
        ours, true = (products(config, each, layer, 2, rank) for each in (files, plain))
        assert all(map(torch.equal, ours, true))
        assert {tuple(row.tolist()) for row in ours[0]} < whole


def products(
    config: ModelConfig, files: WeightFiles, layer: int, tensor: int, rank: int
) -> list[torch.Tensor]:
    """The weights of the projections to and back."""
    shard = shard_of(config, RankPlace(tensor, 1, rank))
    weights = open_weights(files, config, torch.float32).cut_to(shard)
    spec = config.layer(layer).recurrent
    assert spec is not None
    parts = Parts(config, weights, ReferenceOps(), shard, Ranks(shard.place))
    mixer: Any = load_mixer(parts, layer, spec)
    output = mixer._output if tensor == 1 else mixer._output.product
    return [mixer._inputs.weight, output.weight]
