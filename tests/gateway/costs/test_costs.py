"""No body keeps the event loop for longer than 50 ms, whatever it is a product of: it is
answered, or refused with a reason.

Judged is the processor time of the loop's thread in one turn, so it may run beside anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from testing.costs.recipes import Recipe, cost_of, found
from testing.costs.scene import Cost, Scene
from tests import rotation
from tests.gateway.costs.operations import example, models_of, operations, path_of
from tests.gateway.costs.products import every_product, products_of_turn
from tests.gateway.heartbeat.beating import latest

TURNS = 12
"""Commits in which every pair of places comes once."""
TRIES = 3
"""What is too long once may be a collection of garbage that was due: the shortest counts."""
PATIENCE = 10.0
"""Processor seconds of the loop, in all turns, after which a body is given up."""
MOST_NAMED = 30
"""Bodies that are too dear after which no more are tried."""
WITHOUT_ANSWER = {
    "/v1/conversations/{id}",
    "/v1/conversations/{id}/items",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/adapters",
    "/v1/batches",
    "/collective_rpc",
    "/update_weights_from_disk",
    "/invocations",
}
"""Operations whose examples name what isn't there."""


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Scene() as made:
        yield made


@pytest.fixture(scope="module")
def longest() -> float:
    """Seconds of a turn: 50 ms at this processor's speed."""
    return latest()


def judged(recipe: Recipe, scene: Scene, longest: float) -> Cost:
    """The cheapest of some tries; of one try if that is cheap enough."""
    cost = cost_of(recipe, scene, PATIENCE)
    for _ in range(TRIES - 1):
        if cost.turn.seconds <= longest or not cost.status:
            break
        cost = min(cost, cost_of(recipe, scene, PATIENCE), key=lambda one: one.turn.seconds)
    return cost


def wrong(recipe: Recipe, cost: Cost, longest: float) -> str:
    """What is wrong with it, in a line; empty: nothing."""
    if cost.turn.seconds <= longest and cost.answered:
        return ""
    turn = cost.turn
    where = " < ".join(turn.stack[:3]) or turn.slowest
    return (
        f"{turn.seconds:.3f} s in a turn, status {cost.status}: {recipe.name} ({recipe.model}, "
        f"{cost.sent} bytes): {where} {cost.said[:100]}"
    )


@pytest.mark.parametrize("recipe", found(), ids=lambda recipe: recipe.name)
def test_what_was_dear_once_is_not(recipe: Recipe, scene: Scene, longest: float) -> None:
    assert not wrong(recipe, judged(recipe, scene, longest), longest)


def test_the_bodies_that_grow_are_answered(scene: Scene) -> None:
    """Else nothing would be known of what grows in them."""
    refused = {}
    for operation in operations():
        if operation.path in WITHOUT_ANSWER:
            continue
        for model in models_of(operation):
            recipe = Recipe(
                name=operation.path, model=model, path=path_of(operation), body=example(operation)
            )
            cost = cost_of(recipe, scene)
            if not 200 <= cost.status < 300:
                refused[operation.path, model] = f"{cost.status} {cost.said}"
    assert not refused


@pytest.mark.timeout(900)
def test_no_product_of_two_places_is_dear(
    scene: Scene, longest: float, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = request.config.getoption("--sample")
    turn = rotation.number_of_this_commit() if sample is None else sample
    _try_all(products_of_turn(turn, TURNS), scene, longest, capsys)


@pytest.mark.long
@pytest.mark.timeout(14_400)
def test_no_product_is_dear_in_any_shape(
    scene: Scene, longest: float, capsys: pytest.CaptureFixture[str]
) -> None:
    _try_all(every_product(), scene, longest, capsys)


def _try_all(
    recipes: Iterable[Recipe], scene: Scene, longest: float, capsys: pytest.CaptureFixture[str]
) -> None:
    tried, answered, dearest, lines = 0, 0, 0.0, []
    worst = ""
    for recipe in recipes:
        cost = judged(recipe, scene, longest)
        tried, answered = tried + 1, answered + (200 <= cost.status < 300)
        if cost.turn.seconds > dearest:
            dearest, worst = cost.turn.seconds, recipe.name
        if line := wrong(recipe, cost, longest):
            lines.append(line)
        if len(lines) >= MOST_NAMED:
            break
    with capsys.disabled():
        print(f"\n{tried} products, {answered} answered; the longest turn {dearest:.4f} s: {worst}")
    assert not lines, "\n".join(lines)
