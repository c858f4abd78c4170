"""The plan of a shard: everything exactly once, as evenly as may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.dealing import deal
from penstock.protocol.to_worker import RankGroup
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.shard import UNIT, Shard, deal_units, shard_of
from testing.model_configs import varied
from tests.met import met
from tests.worker.checkpoints import TINY
from tests.worker.models.family_cases import read

pytestmark = pytest.mark.timeout(240)


def sized(**sizes: int) -> ModelConfig:
    return varied(TINY, **sizes)


def shards(config: ModelConfig, tensor: int, pipeline: int = 1) -> list[Shard]:
    return [
        shard_of(config, RankPlace(tensor, pipeline, rank)) for rank in range(tensor * pipeline)
    ]


@st.composite
def plans(draw: st.DrawFn) -> tuple[ModelConfig, int, int]:
    kv_heads = draw(st.integers(1, 12))
    heads = kv_heads * draw(st.integers(1, 9))
    config = sized(
        num_heads=heads,
        num_kv_heads=kv_heads,
        num_layers=draw(st.integers(1, 40)),
        intermediate_size=draw(st.integers(40, 3000)),
        vocab_size=draw(st.integers(40, 3000)),
    )
    tensor = draw(st.integers(1, min(heads, 16)))
    return config, tensor, draw(st.integers(1, min(config.num_layers, 6)))


def joined(parts: list[range]) -> list[int]:
    return [index for part in parts for index in part]


@given(plans())
def test_everything_is_dealt_out_once(plan: tuple[ModelConfig, int, int]) -> None:
    config, tensor, pipeline = plan
    every = shards(config, tensor, pipeline)
    met("parts that aren't alike", config.num_kv_heads % tensor or config.num_layers % pipeline)
    for stage in range(pipeline):
        peers = every[stage * tensor : (stage + 1) * tensor]
        assert joined([peer.heads for peer in peers]) == list(range(config.num_heads))
        assert joined([peer.inner for peer in peers]) == list(range(config.intermediate_size))
        assert joined([peer.vocab for peer in peers]) == list(range(config.vocab_size))
        assert len({peer.layers for peer in peers}) == 1
        assert [len(peer.vocab) for peer in peers] == peers[0].vocab_sizes
    assert joined([one.layers for one in every[::tensor]]) == list(range(config.num_layers))


@given(plans())
def test_query_heads_are_where_their_kv_heads_are(plan: tuple[ModelConfig, int, int]) -> None:
    config, tensor, _ = plan
    group = config.num_heads // config.num_kv_heads
    met("several heads for each of keys, over several ranks", group > 1 and tensor > 1)
    for shard in shards(config, tensor):
        assert len(shard.heads) >= 1
        assert {head // group for head in shard.heads} == set(shard.kv_heads)
        # What the attention kernels count on: equal groups, in order.
        each, rest = divmod(len(shard.heads), len(shard.kv_heads))
        assert rest == 0
        for at, head in enumerate(shard.heads):
            assert shard.kv_heads[at // each] == head // group
        own = shard.own
        assert (own.num_heads, own.num_kv_heads) == (len(shard.heads), len(shard.kv_heads))


@given(plans())
def test_nobody_has_more_than_one_group_more(plan: tuple[ModelConfig, int, int]) -> None:
    config, tensor, pipeline = plan
    every = shards(config, tensor, pipeline)
    group = config.num_heads // config.num_kv_heads

    met("parts that aren't alike", config.num_kv_heads % tensor or config.num_layers % pipeline)

    def spread(parts: list[range]) -> int:
        return max(map(len, parts)) - min(map(len, parts))

    assert spread([one.heads for one in every]) <= group
    assert spread([one.kv_heads for one in every]) <= 1
    assert spread([one.layers for one in every]) <= 1
    assert spread([one.inner for one in every]) <= UNIT
    assert spread([one.vocab for one in every]) <= UNIT


@given(st.integers(1, 5000), st.integers(1, 20))
def test_cuts_lie_at_whole_units_where_they_can(count: int, hands: int) -> None:
    parts = deal_units(count, hands)
    met("enough for a unit each, and some that is left", count > hands * UNIT and count % UNIT)
    met("too little for a unit each", hands <= count < hands * UNIT)
    if count >= hands * UNIT:
        assert all(part.start % UNIT == 0 and len(part) for part in parts)
    if count >= hands:
        assert all(map(len, parts))
    assert joined(deal(count, hands)) == list(range(count))


def test_the_default_models_heads_over_two_and_three_ranks() -> None:
    config = sized(num_heads=9, num_kv_heads=3, vocab_size=49152, intermediate_size=1536)
    two, three = shards(config, 2), shards(config, 3)
    assert [(len(one.heads), len(one.kv_heads)) for one in two] == [(6, 2), (3, 1)]
    assert [(len(one.heads), len(one.kv_heads)) for one in three] == [(3, 1)] * 3
    assert [len(one.vocab) for one in two] == [24576, 24576]
    assert [len(one.inner) for one in three] == [512] * 3


def test_one_kv_head_is_kept_by_all() -> None:
    parts = [(one.heads, one.kv_heads) for one in shards(sized(num_heads=5, num_kv_heads=1), 2)]
    assert parts == [(range(3), range(1)), (range(3, 5), range(1))]


def test_places() -> None:
    named = RankGroup(tensor=2, pipeline=3, rank=4, rendezvous="", number=1)
    place = RankPlace.of(named)
    assert (place.stage, place.tensor_rank, place.first, place.last) == (2, 0, False, True)
    assert place.lead
    assert place.layout == "tensor 2 pipeline 3"
    assert RankPlace.of(None).layout == "1 rank"
    assert RankPlace().first
    assert RankPlace().lead
    with pytest.raises(ValueError, match="no rank"):
        RankPlace(2, 2, 4)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "said"),
    [(6, 1, "5 attention heads"), (1, 3, "2 layers")],
)
def test_what_can_not_be_dealt_out_is_named(tensor: int, pipeline: int, said: str) -> None:
    with pytest.raises(StartupError, match=said):
        shard_of(TINY, RankPlace(tensor, pipeline, 0))


@pytest.mark.parametrize(
    ("case", "tensor", "pipeline", "said"),
    [
        ("gemma4-alike", 2, 1, "heads whose sizes differ between layers"),
        ("gemma4-shared-kv", 1, 2, "2 ranks; the model has an input of each layer's own"),
        ("gemma3n-three-streams", 1, 2, "which one rank must hold: 1 is allowed"),
    ],
)
def test_what_one_rank_must_hold_is_named(case: str, tensor: int, pipeline: int, said: str) -> None:
    with pytest.raises(StartupError, match=said):
        shard_of(read(case), RankPlace(tensor, pipeline, 0))


def test_layers_of_different_heads_are_dealt_out_to_stages() -> None:
    shards = [shard_of(read("gemma4-alike"), RankPlace(1, 3, rank)) for rank in range(3)]
    assert [shard.own.kv_heads(0).size for shard in shards] == [16, 16, 32]
