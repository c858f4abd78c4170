"""Recipes of bodies, and the list of those that were dear once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from testing.costs.answering_core import Answer
from testing.costs.fillers import written
from testing.costs.scene import PATIENCE, Cost, Scene

FOUND = Path(__file__).with_name("found.json")
"""Bodies that were dear: new ones are added, none is taken away."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A body for an operation."""

    name: str
    model: str = "llama"
    """The name of testing.costs.models."""
    path: str
    body: Any
    """What answers the call, as testing.costs.fillers has it."""
    answer: Answer = Answer()
    """What the engine core says."""
    was: float = 0.0
    """Processor seconds of its longest turn when it was found."""

    def content(self) -> bytes:
        return written(self.body)


def found() -> list[Recipe]:
    """The list."""
    return msgspec.json.decode(FOUND.read_bytes(), type=list[Recipe])


def cost_of(recipe: Recipe, scene: Scene, patience: float = PATIENCE) -> Cost:
    """Sends it once."""
    scene.answer(recipe.answer)
    gateway, content = scene.gateway(recipe.model), recipe.content()
    cost = gateway.cost(recipe.path, content, patience=patience)
    if cost.status == 503 and "no session" in cost.said:
        # What came before it had stopped the loop for so long; it is told of that one.
        gateway.wait_ready()
        cost = gateway.cost(recipe.path, content, patience=patience)
    return cost
