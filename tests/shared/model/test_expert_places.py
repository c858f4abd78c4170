"""The table of places: each expert has one, and every rank has its share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.expert_places import (
    ExpertPlace,
    ExpertPlaces,
    dealt,
    parallel_places,
)
from penstock.prepare.describe import experts_of
from tests.met import met
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.test_parity_families import make_theirs

MIXTURE = read("glm45")
"""Its first layer is dense."""
COUNT = 6


def test_one_rank_holds_every_expert() -> None:
    table = dealt(MIXTURE, 1)
    layers = map(MIXTURE.layer, range(MIXTURE.num_layers))
    counts = [layer.feed_forward.experts for layer in layers]
    assert table.layers == tuple((ExpertPlace(),) * (each.count if each else 0) for each in counts)
    assert () in table.layers


@given(st.integers(1, 40), st.integers(2, 40))
def test_each_expert_has_one_rank_and_each_rank_its_share(count: int, ranks: int) -> None:
    met("uneven shares", count % ranks and count > ranks)
    table = dealt(with_experts(count), ranks)
    for layer in range(len(table.layers)):
        shares = [table.held(layer, rank) for rank in range(ranks)]
        assert sorted(sum(shares, ())) == [*range(len(table.layers[layer]))]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        owners = [rank for rank, share in enumerate(shares) for _ in share]
        assert list(table.ranks(layer)) == owners


def test_a_place_has_a_memory() -> None:
    table = ExpertPlaces(((ExpertPlace(0, "card"), ExpertPlace(0), ExpertPlace(1)),))
    assert table.held(0, 0) == (0, 1)
    assert table.held(0, 0, "card") == (0,)
    assert table.held(0, 0, "host") == (1,)
    assert table.held(0, 1, "card") == ()


@pytest.mark.parametrize("ranks", [1, COUNT + 1])
def test_ranks_without_experts_are_refused(ranks: int) -> None:
    with pytest.raises(StartupError, match=f"deals {COUNT} experts .* is {ranks}; .* 2 to {COUNT}"):
        parallel_places(with_experts(COUNT), ranks)
    assert parallel_places(with_experts(COUNT), COUNT).held(1, COUNT - 1) == (COUNT - 1,)


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(StartupError, match="the model has no experts"):
        parallel_places(read("llama-yarn"), 2)


def with_experts(count: int) -> ModelConfig:
    layers = []
    for layer in MIXTURE.layers:
        experts = layer.feed_forward.experts
        if experts is not None:
            experts = replace(experts, count=count)
            layer = replace(layer, feed_forward=replace(layer.feed_forward, experts=experts))
        layers.append(layer)
    return replace(MIXTURE, layers=tuple(layers))


@pytest.mark.parametrize("case", ["qwen3-moe", "gpt-oss", "deepseek-v2-lite", "glm45"])
def test_the_experts_numbers_are_transformers(case: str) -> None:
    theirs = make_theirs(*CASES[case])
    known = experts_of(read(case))
    matrices = [
        parameter
        for name, parameter in theirs.named_parameters()
        if ".experts." in name and not name.endswith("bias")
    ]
    assert known is not None
    assert known.parameters == sum(map(torch.numel, matrices))


def test_a_dense_model_has_no_experts_to_show() -> None:
    assert experts_of(read("llama-yarn")) is None
