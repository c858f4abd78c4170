"""Pictures of things: one to four of one shape and one colour, anywhere, turned anyhow."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import product

from PIL import Image, ImageDraw

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 35, 40),
    "green": (35, 150, 60),
    "blue": (40, 80, 210),
    "yellow": (240, 205, 30),
    "purple": (135, 45, 165),
    "black": (25, 25, 28),
}
SHAPES = ("circle", "square", "triangle", "star")
NUMBERS = ("one", "two", "three", "four")
CORNERS = {"square": 4, "triangle": 3, "star": 10}
FINER = 3
"""Factor by which a picture is drawn larger, so that edges are smooth."""


@dataclass(frozen=True)
class Things:
    """What a picture shows."""

    count: int
    colour: str
    shape: str

    @property
    def noun(self) -> str:
        return self.shape + "s" * (self.count > 1)

    @property
    def words(self) -> str:
        return f"{NUMBERS[self.count - 1].capitalize()} {self.colour} {self.noun}."


EVERY = tuple(Things(*each) for each in product(range(1, 5), COLOURS, SHAPES))
NEVER_SHOWN = tuple(EVERY[place] for place in range(5, len(EVERY), 11))
"""Left out when the model is trained: it must have understood what colour, shape and number are to
name these."""
SHOWN = tuple(each for each in EVERY if each not in NEVER_SHOWN)


def draw(things: Things, seed: int, width: int, height: int) -> Image.Image:
    """Returns an RGB picture of so many pixels; the same for the same arguments."""
    choose = random.Random(f"{things} {seed} {width} {height}")
    pale = [choose.randint(205, 255) for _ in range(3)]
    picture = Image.new("RGB", (width * FINER, height * FINER), tuple(pale))
    pen = ImageDraw.Draw(picture)
    for x, y, radius in _places(choose, things.count):
        colour = tuple(
            min(255, max(0, channel + choose.randint(-18, 18)))
            for channel in COLOURS[things.colour]
        )
        outline = _outline(things.shape, choose.uniform(0, math.tau))
        # Stretched as the picture is.
        points = [
            ((x + radius * px) * width * FINER, (y + radius * py) * height * FINER)
            for px, py in outline
        ]
        pen.polygon(points, fill=colour)
    return picture.resize((width, height), Image.Resampling.BOX)


def _places(choose: random.Random, count: int) -> list[tuple[float, float, float]]:
    """(x, y, radius) of circles that don't touch one another or the edge; sides are 1."""
    while True:
        found: list[tuple[float, float, float]] = []
        for _ in range(200):
            radius = choose.uniform(0.13, 0.21 if count > 2 else 0.3)
            x, y = (choose.uniform(radius + 0.01, 0.99 - radius) for _ in range(2))
            if all(math.dist((x, y), (a, b)) > radius + other + 0.03 for a, b, other in found):
                found.append((x, y, radius))
            if len(found) == count:
                return found


def _outline(shape: str, turned: float) -> list[tuple[float, float]]:
    """Corners within a circle of radius 1 around 0, 0."""
    corners = CORNERS.get(shape, 60)
    reach = [0.45 if shape == "star" and corner % 2 else 1.0 for corner in range(corners)]
    if shape == "circle":
        reach = [0.9] * corners
    angles = [turned + math.tau * corner / corners for corner in range(corners)]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(reach, angles, strict=True)]
