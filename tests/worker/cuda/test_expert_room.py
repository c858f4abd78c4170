"""Which experts a card has room for, beside all else that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.expert_room import UNPACKED_BYTES, layers_on_host
from penstock.model.speculation import SpeculativeConfig
from penstock_kernels.cpu import library
from penstock_worker.adapters.models import adaptable_decoder
from penstock_worker.forward import cpu_experts
from penstock_worker.forward.backends import choose
from penstock_worker.forward.expert_room import (
    Cache,
    ExpertLayerBytes,
    beside_bytes,
    card_room,
    copies_on_card,
    layer_bytes,
)
from penstock_worker.forward.interface import DeviceRecipe
from penstock_worker.layers.level_experts import ExpertHost
from penstock_worker.loading.tensors import expert_bytes
from penstock_worker.weights.gguf_files import gguf_tensors
from tests.met import met
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.test_cpu_experts import MIXTURES, of, placed, with_experts, written
from tests.worker.speculation.draft_folders import SERVED, write_folder
from tests.worker.speculation.head_folders import written as write_head

pytestmark = pytest.mark.timeout(120)


@dataclass
class Card:
    """A DeviceMemory of which only two figures are asked for."""

    all: int
    unused: int

    def total(self) -> int:
        return self.all

    def free(self) -> int:
        return self.unused

    def reserved(self) -> int:
        raise NotImplementedError

    allocated = peak = reserved

    def forget_peak(self) -> None:
        raise NotImplementedError

    release = wait = forget_peak


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(0, 40))
def test_as_many_of_the_last_layers_as_fit(sizes: list[int], room: int) -> None:
    count = layers_on_host(sizes, room)
    met("some of each", 0 < count < len(sizes))
    fitting = [first for first in range(len(sizes) + 1) if sum(sizes[first:]) <= room]
    assert count == min(fitting)


@pytest.fixture
def mixture(tmp_path: Path) -> CPUModel:
    return written(tmp_path / "model.gguf", "qwen3-moe-all", *MIXTURES["qwen3-moe-all"])


EACH = 6 * 3 * 64 * 64 // 32 * 18
"""Bytes of a layer's experts, in Q4_0."""


COPIES = 2 * EACH + UNPACKED_BYTES * 6 * 3 * 64 * 64
"""Of a layer's experts, which all go into a buffer."""


def test_bytes_on_the_card(mixture: CPUModel) -> None:
    tensors = gguf_tensors(mixture.weights.files, mixture.config)
    layers = [f"layers.{number}.mlp.experts." for number in range(3)]
    sizes, rest = layer_bytes(tensors, layers)
    assert sizes == [ExpertLayerBytes(EACH, EACH)] * 3
    assert copies_on_card(tensors, dict.fromkeys(layers, 6)) == COPIES
    assert rest + 3 * EACH == sum(each.content.nbytes for each in tensors.values())


@pytest.mark.parametrize("case", MIXTURES)
def test_bytes_in_the_hosts_memory(case: str, tmp_path: Path) -> None:
    """Those of the tiles and biases that are loaded: MXFP4's scales take more there."""
    model = written(tmp_path / "model.gguf", case, *MIXTURES[case])
    layers = with_experts(model.config)
    tensors = gguf_tensors(model.weights.files, model.config)
    found, _ = layer_bytes(tensors, [f"layers.{number}.mlp.experts." for number in layers])
    before = library.instruction_set()
    forward = of(model, "all")
    library.use(before)
    for number, each in zip(layers, found, strict=True):
        own = placed(forward, number).experts
        matrices = (*own.gates, *own.ups, *own.downs)
        biases = [matrix.bias.nbytes for matrix in matrices if matrix.bias is not None]
        assert each.host == sum(matrix.size for matrix in matrices) + sum(biases)
        assert bool(biases) == (case == "gpt-oss")
        assert case != "gpt-oss" or each.host > 1.1 * each.card


@pytest.mark.parametrize("kind", ["IQ4_XS", "Q2_K"])
def test_bytes_of_what_a_card_holds_otherwise_than_its_file(kind: str, tmp_path: Path) -> None:
    """Those of the matrices that are loaded; also for `plan` and `doctor`."""
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "num_experts": 4}
    model = written(tmp_path / "model.gguf", "qwen3-moe-all", kind, sizes)
    layers = with_experts(model.config)
    tensors = gguf_tensors(model.weights.files, model.config)
    found, _ = layer_bytes(tensors, [f"layers.{number}.mlp.experts." for number in layers])
    before = library.instruction_set()
    forward = of(model, "0")
    library.use(before)
    held = []
    for number, each in zip(layers, found, strict=True):
        own = placed(forward, number)
        held.append(own.up.nbytes + own.down.nbytes)
        assert each.card == held[-1]
    about = expert_bytes(model.prepared())
    assert about is not None
    assert about.card == sum(held) > 1.8 * about.file


def test_drafts_and_adapters_and_media_have_room_beside(mixture: CPUModel, tmp_path: Path) -> None:
    setup, cache = mixture.setup(num_blocks=7), Cache(50, ())
    config, prepared = mixture.config, mixture.prepared()
    assert beside_bytes(setup, prepared, cache, None, None) == 0
    own = SpeculativeConfig(method="mtp", num_speculative_tokens=2)
    drafted = msgspec.structs.replace(setup, speculation=own)
    assert beside_bytes(drafted, prepared, cache, None, None) == 234  # 2 * 7 * 50 / 3 layers
    looked_up = SpeculativeConfig(method="suffix", num_speculative_tokens=2)
    drafted = msgspec.structs.replace(setup, speculation=looked_up)
    assert beside_bytes(drafted, prepared, cache, None, None) == 0
    folder = write_folder(tmp_path / "draft")
    other = SpeculativeConfig(method="draft_model", model=str(folder), num_speculative_tokens=2)
    drafted = msgspec.structs.replace(setup, speculation=other)
    weights = sum(each.stat().st_size for each in folder.glob("*.safetensors"))
    numbers = 2 * SERVED.num_layers * SERVED.num_kv_heads * SERVED.head_dim
    assert weights > 0
    found = beside_bytes(drafted, prepared, cache, None, None)
    assert found in [weights + 7 * 16 * numbers * size for size in (2, 4)]
    adapted = msgspec.structs.replace(setup, max_loras=3, max_lora_rank=8)
    model = adaptable_decoder(config)
    least = sum(8 * sum(shape) for shape in model.modules.values())
    found = beside_bytes(adapted, prepared, cache, model, None)
    assert 3 * 2 * least <= found < 3 * 4 * least
    media: Any = SimpleNamespace(nbytes=11)
    tower = tmp_path / "tower"
    tower.write_bytes(bytes(1000))
    seeing = msgspec.structs.replace(
        prepared, weights=msgspec.structs.replace(prepared.weights, mmproj=str(tower))
    )
    assert beside_bytes(setup, seeing, cache, None, media) == 1011
    room = card_room(setup, Card(10_000, 10_000), 1.0, 100, cache, 1011)
    assert room.experts == 10_000 - 350 - 500 - 100 - 1011


def test_a_head_has_room_with_its_cache(mixture: CPUModel, tmp_path: Path) -> None:
    """One of EAGLE-3: of one layer, and no model by itself."""
    head = write_head("Llama", "eagle3", tmp_path / "head").said
    said = SpeculativeConfig(**head, num_speculative_tokens=2)
    setup = msgspec.structs.replace(mixture.setup(num_blocks=7), speculation=said)
    found = beside_bytes(setup, mixture.prepared(), Cache(50, ()), None, None)
    weights = sum(each.stat().st_size for each in (tmp_path / "head/head").glob("*.safetensors"))
    assert weights > 0
    assert found == weights + 7 * 16 * 2 * 2 * 16 * 4  # Keys, values, heads, numbers of float32.


def test_the_cache_comes_first(mixture: CPUModel) -> None:
    """What was asked for; or the longest sequence's, or a fifth, whichever is more."""
    setup = mixture.setup(num_blocks=7)
    room = card_room(setup, Card(1000, 900), 0.8, 100, Cache(50, ()))
    assert (room.usable, room.kv, room.steps, room.rest) == (700, 350, 35, 100)
    assert room.experts == 215
    any_number = msgspec.structs.replace(setup, num_kv_blocks=None, max_model_len=64)
    groups = recipe_of(mixture, "0").kv_groups
    assert card_room(any_number, Card(1000, 1000), 1.0, 0, Cache(50, groups)).kv == 200
    assert card_room(any_number, Card(1000, 1000), 1.0, 0, Cache(100, groups)).kv == 400
    assert card_room(any_number, Card(1000, 100), 0.5, 0, Cache(50, groups)).experts == 0


def recipe_of(mixture: CPUModel, words: str) -> DeviceRecipe:
    before = library.instruction_set()
    setup = msgspec.structs.replace(mixture.setup(), cpu_experts=words)
    try:
        recipe = choose(mixture.prepared(), setup, 1)
    finally:
        library.use(before)
    assert isinstance(recipe, DeviceRecipe)
    return recipe


def test_auto_is_told_by_the_cards_memory(
    mixture: CPUModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first size on that holds all, decodes have CUDA graphs."""
    layers = [f"layers.{number}.mlp" for number in range(3)]
    recipe = recipe_of(mixture, "0")
    setup = mixture.setup()
    assert setup.num_kv_blocks is not None
    tensors = gguf_tensors(mixture.weights.files, mixture.config)
    fixed = setup.num_kv_blocks * recipe.block_bytes
    fixed += sum(each.content.nbytes for each in tensors.values()) - 3 * EACH
    hosts: list[ExpertHost] = []
    load = ExpertHost

    def watched(*parts: Any) -> Any:
        hosts.append(load(*parts))
        return hosts[-1]

    monkeypatch.setattr(cpu_experts, "ExpertHost", watched)
    # A tiny layer takes less room than its copies do.
    monkeypatch.setattr(cpu_experts, "copies_on_card", lambda *_: 300)
    for on_card in range(4):
        # Half of the card may be used, and a twentieth of that is for steps. Copies take room where
        # experts are on the host.
        taken = fixed + on_card * EACH + (300 if on_card < 3 else 0)
        usable = -(-taken * 20 // 19) + 1
        monkeypatch.setattr(cpu_experts, "memory_of", lambda _, size=2 * usable: Card(size, size))
        found = recipe_of(mixture, "auto")
        assert hosts[-1].on_host == frozenset(layers[: 3 - on_card])
        assert (found.graphs > 0) == (on_card == 3)
        assert found.fingerprint == recipe.fingerprint
