"""The KV group of recurrent layers: how far apart checkpoints are, and what is said of them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.settings import EngineConfig
from penstock.errors import StartupError, UnsupportedModel
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import (
    FULL,
    MAX_STATE_TOKENS,
    NO_GROUP,
    KVGroup,
    blocks_needed,
    kv_groups,
    kv_layout,
    state_bytes,
    with_states,
)
from penstock.model.layer_spec import LayerSpec
from penstock.model.recurrent_spec import GatedDeltaSpec, RecurrentSpec, ShortConvSpec
from penstock.prepare.describe import kv_bytes, kv_bytes_per_token
from penstock_planning.simulate.facts import facts
from tests.met import met

WINDOW = LayerSpec(attention=AttentionSpec(window=100))
QWEN3_NEXT = GatedDeltaSpec(key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4)
LFM2 = ShortConvSpec(width=2048, kernel=3)


def config_of(*layers: LayerSpec, **sizes: int) -> ModelConfig:
    base = facts(EngineConfig()).model.decoder
    return msgspec.structs.replace(base, layers=layers, num_layers=len(layers), **sizes)


def recurrent(spec: RecurrentSpec) -> LayerSpec:
    return LayerSpec(recurrent=spec)


def test_recurrent_layers_have_no_place_in_blocks() -> None:
    own = recurrent(LFM2)
    layout = kv_layout(config_of(own, LayerSpec(), own, WINDOW, LayerSpec(), own), 1000)
    assert layout.groups == (FULL, FULL, KVGroup(window=100))
    assert layout.layers == (NO_GROUP, 0, NO_GROUP, 2, 1, NO_GROUP)
    assert layout.page_layers(range(6)) == 1


def test_a_model_without_attention_has_blocks_for_states_alone() -> None:
    config = config_of(recurrent(LFM2), recurrent(LFM2), num_kv_heads=2, head_dim=64)
    layout = kv_layout(config, 1000)
    assert layout.layers == (NO_GROUP, NO_GROUP)
    for stage in (range(2), range(1), range(1, 2)):
        assert layout.page_layers(stage) == 1
    assert kv_bytes_per_token(config, "bfloat16") == 0
    groups = kv_groups(config, 2, 1000, 16)
    assert groups[-1].blocks == -(-state_bytes(config) // (16 * 2 * 2 * 64 * 2))
    # However long a sequence is, it holds its last block, the last copy, and one that is written.
    assert blocks_needed(groups, 1 << 20, 16) == 1 + 2 * groups[-1].blocks
    only_inner = config_of(LayerSpec(halves="feed_forward"))
    with pytest.raises(UnsupportedModel, match="no layer has attention or a state"):
        kv_layout(only_inner, 1000)


def test_a_stage_without_attention_is_refused_by_name() -> None:
    layout = kv_layout(config_of(recurrent(LFM2), LayerSpec()), 1000)
    with pytest.raises(UnsupportedModel, match="layers 0 to 0 have no attention"):
        layout.page_layers(range(1))


@pytest.mark.parametrize(
    ("layers", "sizes", "every", "mib"),
    [
        # Qwen3-Next 80B: 36 states beside 12 layers of attention.
        (12 * [*3 * [recurrent(QWEN3_NEXT)], LayerSpec()], (2, 256), 2048, 75.375),
        # LFM2 1.2B: 10 beside 6.
        ([*10 * [recurrent(LFM2)], *6 * [LayerSpec()]], (8, 64), 16, 0.15625),
    ],
)
def test_known_models(
    layers: list[LayerSpec], sizes: tuple[int, int], every: int, mib: float
) -> None:
    config = config_of(*layers, num_kv_heads=sizes[0], head_dim=sizes[1])
    assert state_bytes(config) == mib * 2**20
    *_, group = kv_groups(config, 2, 32_768, 16)
    assert group.every == every
    attention = sum(layer.attends for layer in layers)
    per_token = attention * 2 * sizes[0] * sizes[1] * 2
    assert kv_bytes_per_token(config, "bfloat16") == per_token
    block = per_token * 16
    assert group.blocks == -(-state_bytes(config) // block)
    assert kv_bytes(config, "bfloat16") >= config.max_position * per_token + state_bytes(config)


@given(
    st.integers(1, 10**9),
    st.integers(1, 10**7),
    st.integers(1, 64),
    st.lists(st.sampled_from([FULL, KVGroup(window=9)]), min_size=1, max_size=4).map(tuple),
)
def test_a_checkpoint_takes_no_more_than_the_tokens_between_two(
    states: int, block_bytes: int, size: int, groups: tuple[KVGroup, ...]
) -> None:
    *kept, group = with_states(groups, states, block_bytes=block_bytes, block_size=size)
    assert tuple(kept) == groups
    met("several blocks", group.blocks > 1)
    met("full attention beside a window", len({*groups}) > 1)
    assert group.every is not None
    assert group.every % size == 0
    assert (group.blocks - 1) * block_bytes < states <= group.blocks * block_bytes
    lasting = groups.count(FULL) or len(groups)
    between = group.every // size * lasting
    assert between >= group.blocks or group.every > MAX_STATE_TOKENS - size
    assert between < group.blocks + lasting, "and are no further apart than that needs"


def test_a_setting_says_how_far_apart() -> None:
    sizes = {"block_bytes": 100, "block_size": 16}
    assert with_states((FULL,), 250, every=64, **sizes)[1] == KVGroup(every=64, blocks=3)
    assert with_states((FULL,), 0, every=64, **sizes) == (FULL,)
    with pytest.raises(StartupError, match="a multiple of kv_block_size, 16"):
        with_states((FULL,), 250, every=40, **sizes)
