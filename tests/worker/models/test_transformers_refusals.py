"""What transformers' code can't be trusted with is found before it serves."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.config import TransformersConfig
from penstock_worker.attention.interface import CacheShape
from penstock_worker.by_transformers.loading import load_model
from penstock_worker.by_transformers.model import LibraryModel
from penstock_worker.by_transformers.paged import FAR, _window_of
from penstock_worker.by_transformers.rehearsal import rehearse
from penstock_worker.forward.backends import choose
from tests.worker.cpu_model import CPUModel
from tests.worker.models.transformers_cases import described, make_theirs


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phi")
    make_theirs("phi").save_pretrained(folder)
    return folder


def changed(model: CPUModel, **settings: Any) -> TransformersConfig:
    assert isinstance(model.config, TransformersConfig)
    stated = json.loads(model.config.settings) | settings
    return msgspec.structs.replace(model.config, settings=json.dumps(stated))


def load(model: CPUModel, config: TransformersConfig | None = None, positions: int = 256) -> Any:
    found = model.config if config is None else config
    assert isinstance(found, TransformersConfig)
    return load_model(found, model.weights, torch.float32, positions)


def with_tensors(
    saved: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> CPUModel:
    tensors = load_file(saved / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    return described(tmp_path)


NAME = "model.layers.1.mlp.fc1.weight"


def test_tensors_that_do_not_fit_are_named(saved: Path, tmp_path: Path) -> None:
    def lacks(tensors: dict[str, Any]) -> None:
        del tensors[NAME]
        tensors["model.elsewhere"] = torch.zeros(96 * 64)  # as much as before, by another name

    for change, said in (
        (lacks, f"lacks 1 tensors of the model: {NAME}"),
        (lambda t: t.update({"model.more": torch.zeros(3)}), "doesn't use: model.more"),
        (
            lambda t: t.update({NAME: torch.zeros(64, 96)}),
            "has 1 tensors of other shapes than the model's: .*fc1",
        ),
        (
            lambda t: t.update({NAME: torch.zeros(96, 64, dtype=torch.float8_e4m3fn)}),
            "stored as F8_E4M3; F32, F16",
        ),
    ):
        with pytest.raises(UnsupportedModel, match=said):
            load(with_tensors(saved, tmp_path, change))


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "wide": ({"intermediate_size": 1 << 40}, "config.json describes .* and the weights hold"),
    "deep": ({"num_hidden_layers": 40}, "config.json describes .* and the weights hold"),
    "another class": ({"model_type": "gpt2"}, "GPT2LMHeadModel is"),
    "no such type": ({"model_type": "phi9"}, "has no decoder for model_type 'phi9'"),
    "nonsense": ({"rope_parameters": {"rope_type": 7}}, "transformers"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_settings_that_can_not_be(case: str, saved: Path) -> None:
    settings, said = HOSTILE[case]
    model = described(saved)
    with pytest.raises(UnsupportedModel, match=said):
        load(model, changed(model, **settings))


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(("rope", "limit"), [(LONGROPE, 64), (DYNAMIC, 256)])
def test_rotation_that_follows_the_longest_sequence(
    rope: dict[str, Any], limit: int, saved: Path
) -> None:
    """It is served as far as it doesn't."""
    model = described(saved)
    settings = changed(model, rope_parameters=rope | {"partial_rotary_factor": 0.5})
    load(model, settings, limit)
    with pytest.raises(UnsupportedModel, match=f"behind {limit} tokens.*--max-model-len {limit} "):
        load(model, settings, limit + 1)


def test_a_class_with_attention_of_its_own(saved: Path) -> None:
    model = described(saved)
    falcon = changed(model, model_type="falcon")
    with pytest.raises(UnsupportedModel, match="computes its attention itself"):
        load(model, msgspec.structs.replace(falcon, architecture="FalconForCausalLM"))


def test_more_layers_than_tensors(saved: Path) -> None:
    model = described(saved)
    deep = msgspec.structs.replace(changed(model, num_hidden_layers=4096), num_layers=4096)
    with pytest.raises(UnsupportedModel, match=r"describes 4096 layers of Phi.* hold 47 tensors"):
        load(model, deep)


def test_heads_that_config_json_does_not_say(saved: Path) -> None:
    model = described(saved)
    wrong = msgspec.structs.replace(model.config, num_kv_heads=4)
    with pytest.raises(UnsupportedModel, match="says 4 and 4 of 16"):
        dataclasses.replace(model, config=wrong).forward(block_size=16, num_blocks=4, threads=1)


class Mixing(nn.Module):
    """Adds something of the rows before to each row."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden + 0.1 * hidden.cumsum(1))


class Company(Mixing):
    """Its last bits depend on how many rows there are."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden) * (1 + 1e-6 * hidden.shape[1])


@pytest.mark.parametrize("kind", [Mixing, Company, nn.Identity])
def test_a_rehearsal_finds_rows_that_depend_on_others(kind: Any, saved: Path) -> None:
    model = described(saved)
    theirs = load(model)
    layer = theirs.model.layers[1]
    layer.mlp = kind(layer.mlp)
    shape = CacheShape.of(model.config, 16, torch.float32)
    with torch.inference_mode():
        if kind is Mixing:
            with pytest.raises(UnsupportedModel, match="mixes the sequences of a step"):
                rehearse(LibraryModel(theirs, headless=False), shape, 199)
            return
        facts, same = rehearse(LibraryModel(theirs, headless=False), shape, 199)
    assert same == (kind is nn.Identity)
    assert facts.windows == {0: None, 1: None, 2: None}


def test_masks_are_read_as_windows() -> None:
    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key <= query

    def window(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (key > query - 4096)

    def chunks(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (key // 4096 == query // 4096)

    def both_ways(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key >= 0

    assert _window_of(causal) == FAR
    assert _window_of(window) == 4096
    for other in (chunks, both_ways):
        with pytest.raises(UnsupportedModel, match=r"the model's code has a mask (that|other)"):
            _window_of(other)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"attention_backend": "reference"}, "layers that only transformers' code describes"),
        ({"attention_backend": "cpu"}, "layers that only transformers' code describes"),
        ({"quantization": "int8"}, "quantization is int8"),
        ({"load_format": "dummy"}, "load_format is dummy"),
    ],
)
def test_settings_that_only_families_follow(
    settings: dict[str, str], said: str, saved: Path
) -> None:
    model = described(saved)
    setup = msgspec.structs.replace(model.setup(), **{"attention_backend": "auto"} | settings)
    with pytest.raises(StartupError, match=said):
        choose(model.prepared(), setup, 1)


def test_a_family_is_never_computed_by_it(saved: Path, tmp_path: Path) -> None:
    from tests.worker.checkpoints import TINY, tiny_files

    model = CPUModel(TINY, tiny_files(tmp_path), "float32", backend="transformers")
    with pytest.raises(StartupError, match="a family describes the model"):
        model.recipe()
