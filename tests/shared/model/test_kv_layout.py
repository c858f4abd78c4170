"""Which layers share a block table, for the patterns that models have."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import FULL, MAX_GROUPS, KVGroup, blocks_needed, kv_layout
from penstock.model.layer_spec import LayerSpec
from testing.model_configs import llama_config
from tests.met import met

SIZES = {
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 8,
    "max_position": 1 << 20,
}


def config_of(windows: list[int | None]) -> ModelConfig:
    layers = tuple(LayerSpec(attention=AttentionSpec(window=each)) for each in windows)
    config = llama_config(num_layers=len(layers), **SIZES)
    return msgspec.structs.replace(config, layers=layers)


def every(count: int, of: int, window: int) -> list[int | None]:
    """Each layer number `of` sees everything, the others a window."""
    return [None if (at + 1) % of == 0 else window for at in range(count)]


@pytest.mark.parametrize(
    ("windows", "groups", "page"),
    [
        ([None] * 30, 1, 30),
        ([4096] * 32, 1, 32),  # Mistral
        (every(42, 2, 4096), 2, 21),  # Gemma 2
        (every(26, 6, 512), 1 + 6, 4),  # Gemma 3, 1B
        (every(62, 6, 1024), 1 + 6, 10),  # Gemma 3, 27B
        (every(32, 4, 4096), 1 + 3, 8),  # OLMo 3, Cohere R7B
        ([4096] * 3 + [None] * 25, 25 + 3, 1),
        ([4096] + [None] * 40, 14 + 1, 3),
    ],
)
def test_groups_of_known_patterns(windows: list[int | None], groups: int, page: int) -> None:
    layout = kv_layout(config_of(windows), 1 << 17)
    assert len(layout.groups) == groups
    assert layout.page_layers(range(len(windows))) == page


@given(st.lists(st.sampled_from([None, 100, 300, 2000]), min_size=1, max_size=80))
def test_each_layer_has_a_place_of_its_own(windows: list[int | None]) -> None:
    config = config_of(windows)
    layout = kv_layout(config, 1000)
    assert 1 <= len(layout.groups) <= MAX_GROUPS
    places = layout.places(range(len(windows)))
    assert len(set(places)) == len(places)
    met("several groups", len(layout.groups) > 1)
    page = layout.page_layers(range(len(windows)))
    for window, (group, place) in zip(windows, places, strict=True):
        # No sequence outgrows a window of 2,000.
        assert layout.groups[group].window == (None if window == 2000 else window)
        assert place < page
    held = Counter(group for group, _ in places)
    assert len(held) == len(layout.groups), "a group without layers"


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_have_a_part_of_each_group(stages: int) -> None:
    windows = every(24, 6, 512)
    layout = kv_layout(config_of(windows), 4096)
    size = len(windows) // stages
    for stage in range(stages):
        own = range(stage * size, (stage + 1) * size)
        assert len(set(layout.places(own))) == size
        assert layout.page_layers(own) <= -(-layout.page_layers(range(24)) // stages)


@given(
    st.sampled_from([FULL, KVGroup(window=1), KVGroup(window=9), KVGroup(window=10, chunk=14)])
    | st.builds(KVGroup, chunk=st.integers(1, 30)),
    st.integers(1, 8),
    st.integers(1, 120),
)
def test_what_is_needed_is_what_tokens_see(group: KVGroup, size: int, tokens: int) -> None:
    """Token by token; what a token behind the last full block sees is kept too."""
    most = 0
    for position in range(tokens):
        whole = position // size * size
        seen = [at for at in range(position + 1) if at >= group.first_seen(whole)]
        most = max(most, len({at // size for at in seen}))
    needed = blocks_needed([group], tokens, size)
    met("some tokens aren't seen any more", needed < -(-tokens // size))
    assert most <= needed <= -(-tokens // size)
    if group.chunk is None:
        assert most == needed


def test_layers_that_read_anothers_keys_and_values_have_no_pages() -> None:
    """Gemma 3n, E2B: 15 of 30 layers, each reads the last layer of its kind that has its own."""
    windows, own = every(30, 5, 512), 20
    config = config_of(windows)
    layers = list(config.layers)
    for number in range(own, 30):
        source = 19 if windows[number] is None else 18
        rule = msgspec.structs.replace(layers[number].attention, reads=source)
        layers[number] = LayerSpec(attention=rule)
    layout = kv_layout(msgspec.structs.replace(config, layers=tuple(layers)), 1 << 15)
    places = layout.places(range(30))
    assert len(set(places[:own])) == own
    assert set(places[own:]) == {places[18], places[19]}
    assert [places[number] for number in (20, 24)] == [places[18], places[19]]
    assert len(layout.groups) * layout.page_layers(range(30)) == own
