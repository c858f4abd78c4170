"""Of which layers a card's host has the experts."""

from __future__ import annotations

import pytest

from penstock.errors import StartupError
from penstock.model.expert_places import ExpertPlaces, host_places
from tests.worker.models.family_cases import read

MIXTURE = read("glm45")
"""Its first layer is dense, and the next two have eight experts each."""


def layers_on_host(table: ExpertPlaces) -> list[int]:
    return [layer for layer in range(len(table.layers)) if table.held(layer, 0, "host")]


@pytest.mark.parametrize(
    ("words", "wanted"), [("0", []), ("1", [1]), ("2", [1, 2]), ("all", [1, 2])]
)
def test_the_first_layers_with_experts(words: str, wanted: list[int]) -> None:
    table = host_places(MIXTURE, words)
    assert layers_on_host(table) == wanted
    for layer, places in enumerate(table.layers):
        assert len(places) == (8 if layer else 0)
        assert len({place.memory for place in places}) <= 1


@pytest.mark.parametrize("words", ["3", "-1", "most", "", "1.5", "²"])
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(
        StartupError, match=r"cpu_experts is '.*'; allowed are 0 to 2, the number of"
    ):
        host_places(MIXTURE, words)


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(StartupError, match="cpu_experts is all; the model has no experts"):
        host_places(read("llama-yarn"), "all")
