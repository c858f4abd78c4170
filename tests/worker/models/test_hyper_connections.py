"""Residuals that each half of a layer mixes, beside the same in plain loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.model.layer_spec import HyperConnectionsSpec
from penstock_worker.layers.hyper_connections import HyperConnection, HyperEnds, Maps, mixing

ROWS, COUNT, HIDDEN = 7, 3, 24
SPEC = HyperConnectionsSpec(count=COUNT, rounds=6, eps=1e-6)


def made(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def maps(*sizes: int) -> Maps:
    total = sum(sizes)
    return Maps(
        made(1, total, COUNT * HIDDEN) / 8, made(2, total), made(3, len(sizes)), sizes, 1e-6
    )


def logits(of: Maps, row: Tensor) -> list[list[float]]:
    """Each part's, of one row's residuals."""
    flat = row.flatten().tolist()
    root = math.sqrt(sum(each * each for each in flat) / len(flat) + of.eps)
    found, at = [], 0
    for number, size in enumerate(of.sizes):
        own = []
        for each in range(at, at + size):
            product = sum(a * b for a, b in zip(flat, of.product[each].tolist(), strict=True))
            own.append(product / root * float(of.scale[number]) + float(of.base[each]))
        found.append(own)
        at += size
    return found


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def square_of(flat: list[float]) -> list[list[float]]:
    rows = [flat[at * COUNT : (at + 1) * COUNT] for at in range(COUNT)]
    rows = [[math.exp(x) / sum(map(math.exp, row)) + SPEC.eps for x in row] for row in rows]
    for turn in range(SPEC.rounds):
        if turn:
            rows = [[x / (sum(row) + SPEC.eps) for x in row] for row in rows]
        sums = [sum(row[at] for row in rows) + SPEC.eps for at in range(COUNT)]
        rows = [[x / total for x, total in zip(row, sums, strict=True)] for row in rows]
    return rows


def test_rows_and_columns_of_the_matrix_sum_to_one() -> None:
    spec = HyperConnectionsSpec(count=4, rounds=20, eps=1e-6)
    found = mixing(made(4, 50, 16), spec)
    assert bool((found > 0).all())
    assert torch.allclose(found.sum(1), torch.ones(50, 4), atol=1e-4)
    assert torch.allclose(found.sum(2), torch.ones(50, 4), atol=1e-2)


def test_what_a_half_reads_and_writes() -> None:
    of, residuals, given = (
        maps(COUNT, COUNT, COUNT * COUNT),
        made(5, ROWS, COUNT, HIDDEN),
        made(6, ROWS, HIDDEN),
    )
    before, connection = residuals.clone(), HyperConnection(SPEC, of)
    read, *weights = connection.read(residuals)
    connection.write(residuals, given, *weights)
    for row in range(ROWS):
        reads, adds, flat = logits(of, before[row])
        wanted = sum((sigmoid(x) + SPEC.eps) * before[row, at] for at, x in enumerate(reads))
        assert torch.allclose(read[row], torch.as_tensor(wanted), atol=1e-5)
        square = square_of(flat)
        for at in range(COUNT):
            mixed = sum(square[other][at] * before[row, other] for other in range(COUNT))
            after = mixed + 2 * sigmoid(adds[at]) * given[row]
            assert torch.allclose(residuals[row, at], after, atol=1e-5)


def test_the_two_ends() -> None:
    of, rows = maps(COUNT), made(7, ROWS, HIDDEN)
    ends = HyperEnds(SPEC, of)
    begun = ends.begin(rows)
    assert torch.equal(begun, rows[:, None].expand(-1, COUNT, -1))
    residuals = made(8, ROWS, COUNT, HIDDEN)
    ended = ends.end(residuals)
    for row in range(ROWS):
        (reads,) = logits(of, residuals[row])
        wanted = sum((sigmoid(x) + SPEC.eps) * residuals[row, at] for at, x in enumerate(reads))
        assert torch.allclose(ended[row], torch.as_tensor(wanted), atol=1e-5)


def test_a_row_has_its_bits_in_any_company() -> None:
    connection = HyperConnection(SPEC, maps(COUNT, COUNT, COUNT * COUNT))
    residuals = made(9, 50, COUNT, HIDDEN)
    alone = connection.read(residuals[17:18].clone())
    for one, among in zip(alone, connection.read(residuals), strict=True):
        assert torch.equal(one, among[17:18])
