"""Which cell gets a request, against a circle that is walked place by place."""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import pytest

from deploy.local import CELLS_CONFIG
from penstock.errors import InvalidRequest
from penstock_planning.cells.balancers import (
    BALANCERS,
    Balancer,
    CellsInTurn,
    HashedCells,
    OneRouter,
    make_balancer,
)
from penstock_planning.commands.cells import ACROSS


@dataclass
class ACell:
    index: int
    load: int = 0
    ready: bool = True


def chosen(balancer: Balancer, belongs: str, cells: list[ACell]) -> int:
    """Index of the cell; one must be ready."""
    cell = balancer.choose(belongs, cells)
    assert cell is not None
    return cell.index


def place(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def walked(belongs: str, cells: list[ACell], points: int, load: Fraction) -> ACell | None:
    """Every place's distance clockwise, the nearest that may have it."""
    start = place(belongs)
    mean = Fraction(sum(c.load for c in cells if c.ready) + 1, max(1, sum(c.ready for c in cells)))
    allowed = [
        ((place(f"cell {cell.index} point {point}") - start) % 2**64, cell.index)
        for cell in cells
        for point in range(points)
        if cell.ready and cell.load < mean * load
    ]
    return cells[min(allowed)[1]] if allowed else None


def test_the_next_cell_clockwise_that_may_have_it_gets_it() -> None:
    rng = random.Random(3)
    handed_on = 0
    for trial in range(300):
        cells = [
            ACell(n, rng.choice([0, 1, 5, 40]), rng.random() < 0.8)
            for n in range(rng.randint(1, 7))
        ]
        balancer = HashedCells(points=4, load=1.5)
        found = balancer.choose(f"it {trial}", cells)
        assert found is walked(f"it {trial}", cells, 4, Fraction(3, 2))
        calm = [ACell(n) for n in range(len(cells))]
        handed_on += found is not None and found.index != chosen(balancer, f"it {trial}", calm)
    assert handed_on > 50, "the test tests nothing if every favourite has room"


@pytest.mark.parametrize(("points", "least", "most"), [(16, 1.25, 2.2), (1024, 1.0, 1.15)])
def test_few_points_give_some_cells_much_more_than_others(
    points: int, least: float, most: float
) -> None:
    """Shares of 32 cells are the arcs before their points: of 16 points, with a standard deviation
    of a quarter."""
    balancer, cells = HashedCells(points=points), [ACell(n) for n in range(32)]
    counts = Counter(chosen(balancer, f"session {n}", cells) for n in range(20_000))
    assert least < max(counts.values()) / (20_000 / 32) < most


def test_a_cell_has_the_points_that_haproxys_file_gives_it() -> None:
    [weight] = re.findall(r"(?m)^    default-server weight (\d+) ", CELLS_CONFIG.read_text())
    cells = [ACell(n) for n in range(8)]
    by_default, as_there = HashedCells(), HashedCells(points=16 * int(weight))
    for belongs in map(str, range(300)):
        assert by_default.choose(belongs, cells) is as_there.choose(belongs, cells)


def test_a_cell_that_leaves_moves_its_own_share_alone() -> None:
    balancer, cells = HashedCells(), [ACell(n) for n in range(8)]
    keys = [f"session {n}" for n in range(2000)]
    before = {key: chosen(balancer, key, cells) for key in keys}
    cells[3].ready = False
    after = {key: chosen(balancer, key, cells) for key in keys}
    assert {key for key in keys if before[key] != after[key]} == {
        key for key in keys if before[key] == 3
    }
    assert len({after[key] for key in keys if before[key] == 3}) > 3, "several share it"


def test_no_cell_has_more_than_twice_the_mean() -> None:
    balancer, cells = HashedCells(), [ACell(n) for n in range(4)]
    for _ in range(400):
        cell = balancer.choose("one tenant", cells)
        assert cell is not None
        cell.load += 1
    assert max(cell.load for cell in cells) == 200


def test_in_turn_leaves_out_who_is_away() -> None:
    balancer, cells = CellsInTurn(), [ACell(n) for n in range(3)]
    cells[1].ready = False
    assert [chosen(balancer, "it", cells) for _ in range(4)] == [0, 2, 0, 2]
    assert CellsInTurn().choose("it", [ACell(0, ready=False)]) is None
    assert OneRouter().choose("it", [ACell(0, ready=False)]) is None
    assert HashedCells().choose("it", [ACell(0, ready=False)]) is None


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(InvalidRequest, match="hashed, hashed-coarsely, one-router, round-robin"):
        make_balancer("chance")


def test_the_command_line_has_every_way_to_choose() -> None:
    """It names them without importing them."""
    assert tuple(BALANCERS) == ACROSS
