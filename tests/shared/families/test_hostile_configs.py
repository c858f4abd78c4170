"""A config.json of a release in which one setting is missing, or says something absurd: it is read,
or refused by name, at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.mechanisms import mechanisms
from tests.met import met
from tests.shared.families.test_real_configs import CONFIGS, USUAL
from tests.shared.releases.reading import READ, RELEASES, ours

pytestmark = pytest.mark.timeout(120)

Place = tuple[str | int, ...]

NUMBERS = [0, -1, 1, 1.5, 2**31, 2**63, 10**30, 1e308, float("inf"), float("nan")]
OTHERS = ["", "x", [], {}, [[]], True, False, None, [0], [-1] * 3, {"a": 1}, [2**40] * 2]


def _places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Of all settings, and of those of the first block where blocks are listed."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*place, key)
            yield from _places(inner, (*place, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from _places(value[0], (*place, 0))


MODELS: dict[str, dict[str, Any]] = {
    **{name: RELEASES[name]["config"] for name in READ},
    **{name: USUAL | config for name, config in CONFIGS.items()},
}
PLACES = [(model, place) for model in MODELS for place in _places(MODELS[model])]


@settings(deadline=5000, max_examples=400)
@given(st.sampled_from(PLACES), st.sampled_from([*NUMBERS, *OTHERS, ...]))
def test_an_absurd_setting_is_read_or_refused_by_name(chosen: tuple[str, Place], said: Any) -> None:
    model, place = chosen
    config = copy.deepcopy(MODELS[model])
    inner: Any = config
    for key in place[:-1]:
        inner = inner[key]
    if said is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = said
    refused = None
    try:
        read = ours(config)
        if isinstance(read, ModelConfig):
            mechanisms(read)
    except UnsupportedModel as error:
        refused = error
    assert refused is None or "config.json" in str(refused)
    met("refused", refused is not None)
    met("read", refused is None)


@pytest.mark.parametrize("count", [2**31, 10**30])
def test_no_list_is_made_of_layers_that_no_model_has(count: int) -> None:
    config = RELEASES["nvidia/GLM-5.1-NVFP4"]["config"] | {"num_hidden_layers": count}
    with pytest.raises(UnsupportedModel, match=f"num_layers is {count}; 1 to"):
        ours(config)


STRETCHED = ("factor", "original_max_position_embeddings", "max_position_embeddings")


@pytest.mark.parametrize("said", [1e308, 1.7e308, 10**400])
def test_positions_that_are_stretched_beyond_all_are_refused_by_name(said: float) -> None:
    """Whatever family reads them: products of both aren't finite."""
    places = [(model, place) for model, place in PLACES if place[-1] in STRETCHED]
    refused = []
    for model, place in places:
        config = copy.deepcopy(MODELS[model])
        inner: Any = config
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = said
        try:
            ours(config)
        except UnsupportedModel as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert all("config.json" in each for each in refused)
