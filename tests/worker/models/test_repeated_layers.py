"""Layers that are computed several times: their weights are read once, an adapter of one of them
changes all its times, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.errors import StartupError, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.model.sharing import check_shared
from penstock.prepare.hub_config import read_config
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.models.decoder import DecoderModel
from tests.adapter_folders import write_peft
from tests.worker.adapters.rig import AdapterRig, Sequence_, factors_of, merged
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.random_weights import RandomWeights

ALPHA, RANK = 12.0, 4
SIZES = {
    "architectures": ["NanbeigeForCausalLM"],
    "head_dim": 32,
    "hidden_size": 96,
    "intermediate_size": 176,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_loops": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 301,
}


def read(**settings: Any) -> ModelConfig:
    return read_config(Fields(SIZES | settings, "config.json"))


def test_weights_are_read_once() -> None:
    config = read(num_loops=3)
    packed = CPUWeights(config, RandomWeights(), None, 1).read(64).layers
    assert [packed.index(each) for each in packed] == [0, 1, 0, 1, 0, 1]
    model = DecoderModel(config, RandomWeights(), 64)
    inner = [getattr(layer, "_inner", layer) for layer in model.layers]
    assert [type(each).__name__ for each in model.layers[::2]] == [
        "DecoderLayer",
        "RenormedLayer",
        "RenormedLayer",
    ]
    assert all(each.attention.qkv is inner[n % 2].attention.qkv for n, each in enumerate(inner))


def test_without_the_norm_the_residual_goes_on() -> None:
    config = read(skip_loop_final_norm=True)
    assert not any(layer.residual_norm for layer in config.layers)
    assert [layer.residual_norm for layer in read().layers] == [False, False, True, False]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_an_adapter_changes_each_time(tmp_path: Path, backend: str) -> None:
    """As PEFT computes it, which puts it around the one module: the numbers are those of a model
    with the adapter merged in."""
    config = read()
    once = msgspec.structs.replace(config, num_layers=2, layers=config.layers[:2])
    files = tiny_files(tmp_path, once)
    factors = factors_of(config, RANK, 1)
    assert {name.split(".")[2] for name in factors} == {"0", "1"}
    rig = AdapterRig(CPUModel(config, files, "float32", backend=backend))
    held = rig.hold(write_peft(tmp_path / "adapter", factors, alpha=ALPHA))
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, 40).tolist()
    with_adapter, without = rig.logits([Sequence_(tokens, held), Sequence_(tokens)])
    whole = merged(files, factors, ALPHA / RANK, tmp_path / "merged.safetensors")
    (meant,) = AdapterRig(replace(rig.model, weights=whole)).logits([Sequence_(tokens)])
    assert (with_adapter - without).abs().max() > 0.1
    torch.testing.assert_close(with_adapter, meant, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_loops": 0}, "num_loops is 0; 1 to 2048"),
        ({"num_loops": 2049}, "num_loops is 2049; 1 to 2048"),
        ({"emb_neighbor_num": 2}, "emb_neighbor_num is 2"),
        ({"loop_loss_weights": [0.5]}, "loop_loss_weights"),
        ({"loop_share_kv": True}, "loop_share_kv is True"),
    ],
)
def test_what_no_release_has_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read(**settings)


def test_stages_are_refused() -> None:
    with pytest.raises(StartupError, match="several times"):
        check_shared(read(), 1, 2)
    check_shared(read(), 2, 1)


def test_one_time_is_llama() -> None:
    config, llama = read(num_loops=1), read(architectures=["LlamaForCausalLM"], num_loops=None)
    assert msgspec.structs.replace(config, architecture="llama") == llama


def test_a_file_with_further_layers_is_refused(tmp_path: Path) -> None:
    files = tiny_files(tmp_path, read(architectures=["LlamaForCausalLM"], num_hidden_layers=4))
    assert isinstance(files, WeightFiles)
    with pytest.raises(UnsupportedModel, match="doesn't use"):
        CPUModel(read(), files, "float32").forward(block_size=16, num_blocks=4, threads=1)
