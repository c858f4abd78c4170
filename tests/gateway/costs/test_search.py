"""Hypothesis looks for the body that keeps the event loop longest: two or three places of an
operation, their sizes and kinds of text, led by what the ones before them cost.

What it finds is written as lines for found.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st

from testing.costs.recipes import Recipe
from testing.costs.scene import Cost, Scene
from tests.gateway.costs.operations import by_path
from tests.gateway.costs.products import (
    LARGEST_BODY,
    Part,
    apart,
    edge_of,
    kinds_of,
    places_of,
    recipe_with,
)
from tests.gateway.costs.test_costs import judged, wrong
from tests.gateway.heartbeat.beating import latest

EXAMPLES = 1500
SMALLER, LARGER = -8, 2
"""Powers of two by which a size may be away from what is taken."""


@st.composite
def bodies(draw: st.DrawFn) -> Recipe | None:
    path = draw(
        st.sampled_from(sorted(path for path in by_path() if places_of(by_path()[path])[1]))
    )
    growing, factors = places_of(by_path()[path])
    sites = [draw(st.sampled_from(growing)), draw(st.sampled_from(factors))]
    if draw(st.booleans()):
        sites.append(draw(st.sampled_from(factors)))
    if any(not apart(one, other) for one in sites for other in sites if one is not other):
        return None
    parts = []
    for site in sites:
        power = draw(st.integers(SMALLER, LARGER))
        size = max(1, int(edge_of(path, site) * 2.0**power))
        parts.append(Part(site, size, draw(st.sampled_from(kinds_of(site)))))
    most = draw(st.sampled_from((100_000, 1_000_000, LARGEST_BODY)))
    shown = " x ".join(f"{part.size} {part.site.name} ({part.kind})" for part in parts)
    return recipe_with(path, parts, most, f"{path}: {shown}")


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Scene() as made:
        yield made


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_no_search_finds_a_dear_body(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    longest, found = latest(), dict[str, tuple[Recipe, Cost]]()
    tried, dearest = 0, 0.0

    @settings(
        max_examples=EXAMPLES,
        derandomize=False,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies())
    def search(recipe: Recipe | None) -> None:
        nonlocal tried, dearest
        if recipe is None:
            return
        cost = judged(recipe, scene, longest)
        tried, dearest = tried + 1, max(dearest, cost.turn.seconds)
        target(cost.turn.seconds, label="processor seconds of a turn")
        if wrong(recipe, cost, longest):
            found[recipe.name] = (recipe, cost)

    search()
    with capsys.disabled():
        print(f"\n{tried} bodies; the longest turn {dearest:.4f} s")
    assert not found, "\n".join(_lines(found.values(), longest))


def _lines(found: Iterable[tuple[Recipe, Cost]], longest: float) -> Iterator[str]:
    """The dearest first: what is wrong, and the line for the list."""
    for recipe, cost in sorted(found, key=lambda each: -each[1].turn.seconds):
        kept = msgspec.structs.replace(recipe, was=round(cost.turn.seconds, 3))
        yield f"{wrong(recipe, cost, longest)}\n{msgspec.json.encode(kept).decode()},"
