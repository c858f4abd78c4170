"""Each tensor-parallel rank's part of a recurrent layer: the numbers of one rank that has all."""

from __future__ import annotations

import msgspec
import pytest
import torch

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.recurrent_spec import (
    GatedDeltaSpec,
    Mamba2Spec,
    RecurrentSpec,
    ShortConvSpec,
    state_numbers,
)
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.recurrent.mixers import load_mixer
from penstock_worker.layers.reference_ops import ReferenceOps
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.shard import recurrent_shard, shard_of
from tests.worker.checkpoints import TINY
from tests.worker.random_weights import RandomWeights

CONV = ShortConvSpec(width=70, kernel=4, bias=True)
DELTA = GatedDeltaSpec(key_heads=3, value_heads=6, key_dim=4, value_dim=5, kernel=3)
MAMBA = Mamba2Spec(heads=12, head_dim=5, groups=4, state=6, kernel=3, bias=True, norm_groups=4)
SPECS: dict[str, tuple[RecurrentSpec, int]] = {
    "channels": (CONV, 3),
    "heads of a key head": (DELTA, 2),
    "tiled heads": (msgspec.structs.replace(DELTA, tiled=True), 2),
    "more ranks than key heads": (DELTA, 5),
    "more ranks than key heads, tiled": (msgspec.structs.replace(DELTA, tiled=True), 5),
    "channels that decay": (msgspec.structs.replace(DELTA, rank=7), 2),
    "more ranks than key heads, channels that decay": (msgspec.structs.replace(DELTA, rank=7), 5),
    "groups": (MAMBA, 3),
    "groups of which each is normed by itself": (MAMBA, 4),
    "more ranks than groups": (msgspec.structs.replace(MAMBA, groups=2, norm_groups=4), 4),
}
EACH = pytest.mark.parametrize("case", SPECS)


def config_with(spec: RecurrentSpec) -> ModelConfig:
    layer = msgspec.structs.replace(TINY.layers[0], recurrent=spec)
    return msgspec.structs.replace(TINY, num_heads=12, num_kv_heads=12, layers=(layer,))


def parts_of(config: ModelConfig, tensor: int, rank: int) -> Parts:
    shard = shard_of(config, RankPlace(tensor, 1, rank))
    weights = RandomWeights().cut_to(shard)
    return Parts(config, weights, ReferenceOps(), shard, Ranks(shard.place))


def computed(config: ModelConfig, tensor: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the recurrence gives, and what is projected back, of some tokens."""
    spec = config.layer(0).recurrent
    assert spec is not None
    mixer = load_mixer(parts_of(config, tensor, rank), 0, spec)
    mixer._output = lambda x: x  # type: ignore[attr-defined]
    hidden = torch.randn(9, config.hidden_size, generator=torch.Generator().manual_seed(4))
    features = mixer.project(hidden)
    own = recurrent_shard(spec, tensor, rank).own
    state = torch.zeros(state_numbers(own))
    mixed = torch.cat((mixer.scan(features[:5], state), mixer.scan(features[5:], state)))
    return mixed, mixer.finish(mixed, features)


@EACH
def test_a_rank_has_the_numbers_of_one_that_has_all(case: str) -> None:
    spec, tensor = SPECS[case]
    config = config_with(spec)
    whole = computed(config, 1, 0)
    assert whole[0].std() > 0
    seen: list[int] = []
    for rank in range(tensor):
        shard = recurrent_shard(spec, tensor, rank)
        columns = [at for part in shard.inner for at in part]
        assert not shard.gathered
        for mine, theirs in zip(computed(config, tensor, rank), whole, strict=True):
            assert torch.equal(mine, theirs[:, columns])
        seen += columns
    assert sorted(seen) == list(range(whole[0].shape[1]))


@EACH
def test_states_are_shared_out(case: str) -> None:
    """Where each rank has whole groups, their states together are as large as one rank's."""
    spec, tensor = SPECS[case]
    owns = [recurrent_shard(spec, tensor, rank).own for rank in range(tensor)]
    together, whole = sum(map(state_numbers, owns)), state_numbers(spec)
    assert together >= whole
    assert max(map(state_numbers, owns)) < whole
    if not case.startswith("more ranks"):
        assert together == whole
    assert recurrent_shard(spec, 1, 0).own == spec


def test_a_norm_over_all_groups_is_gathered() -> None:
    spec = msgspec.structs.replace(MAMBA, norm_groups=1)
    shards = [recurrent_shard(spec, 2, rank) for rank in range(2)]
    assert shards[0].gathered == shards[1].gathered == (range(30), range(30, 60))
    assert "norm" not in shards[0].rows


@pytest.mark.parametrize(
    ("groups", "each", "tensor"), [(4, 2, 8), (3, 1, 3), (2, 2, 3), (3, 5, 13)]
)
def test_as_many_ranks_as_heads_are_served(groups: int, each: int, tensor: int) -> None:
    spec = msgspec.structs.replace(DELTA, key_heads=groups, value_heads=groups * each)
    for rank in range(tensor):
        own = recurrent_shard(spec, tensor, rank).own
        assert isinstance(own, GatedDeltaSpec)
        assert own.value_heads % own.key_heads == 0
        assert own.value_heads >= 1


@pytest.mark.parametrize(
    ("spec", "tensor", "said"),
    [
        (msgspec.structs.replace(CONV, width=2), 3, "has 2 channels of short convolutions"),
        (DELTA, 7, "has 6 value heads of gated delta nets"),
        (MAMBA, 13, "has 12 heads of Mamba 2"),
    ],
)
def test_too_many_ranks_are_refused_by_name(spec: RecurrentSpec, tensor: int, said: str) -> None:
    with pytest.raises(StartupError, match=f"tensor_parallel_size is {tensor}; the model {said}"):
        recurrent_shard(spec, tensor, 0)
