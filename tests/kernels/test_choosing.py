"""The choice of the tokens that attention reads, beside one that goes through them one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels import reference

HEADS, SIZE, BLOCK, SLOTS, LENGTH, NEW = 3, 32, 16, 192, 150, 20
TABLE = np.array([3, 0, 7, 5, 9, 1, 2, 4, 8, 6])


def made(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def chosen(query: Tensor, weights: Tensor, keys: Tensor, most: int) -> Tensor:
    """Of the last rows of one sequence, whose blocks are scattered."""
    cache = torch.zeros(1, SLOTS, SIZE)
    places = torch.from_numpy(TABLE.repeat(BLOCK) * BLOCK + np.tile(np.arange(BLOCK), len(TABLE)))
    reference.write_rows(keys[:, None], cache, places[:LENGTH])
    plan = reference.plan_attention(
        [TABLE],
        np.array([len(query)]),
        np.array([LENGTH]),
        block_size=BLOCK,
        zero_slot=SLOTS - BLOCK,
        group=HEADS,
    )
    return reference.choose_tokens(query, weights, cache, plan, most)


def one_by_one(query: Tensor, weights: Tensor, keys: Tensor, most: int) -> list[set[int]]:
    found = []
    for row in range(len(query)):
        seen = range(LENGTH - len(query) + row + 1)
        scores = [
            sum(float(weights[row, head]) * max(0.0, float(query[row, head] @ keys[at]))
                for head in range(HEADS))
            for at in seen
        ]  # fmt: skip
        found.append(set(sorted(seen, key=lambda at: (-scores[at], at))[:most]))
    return found


@pytest.mark.parametrize("most", [1, 40, 140])
def test_the_highest_scores_are_chosen(most: int) -> None:
    query, weights, keys = made(1, NEW, HEADS, SIZE), made(2, NEW, HEADS), made(3, LENGTH, SIZE)
    found = chosen(query, weights, keys, most)
    whole = query.round(), weights.round(), keys.round()  # Whole numbers: many ties.
    for rows, wanted in (
        (found, one_by_one(query, weights, keys, most)),
        (chosen(*whole, most), one_by_one(*whole, most)),
    ):
        assert [set(row.nonzero()[:, 0].tolist()) for row in rows] == wanted


def test_of_equal_scores_the_first_are_chosen() -> None:
    query, weights = made(1, NEW, HEADS, SIZE), torch.zeros(NEW, HEADS)
    found = chosen(query, weights, made(3, LENGTH, SIZE), 7)
    assert torch.equal(found.nonzero()[:, 1], torch.arange(7).repeat(NEW))


def test_all_that_are_seen_are_chosen_if_there_are_no_more() -> None:
    query, weights, keys = made(1, NEW, HEADS, SIZE), made(2, NEW, HEADS), made(3, LENGTH, SIZE)
    found = chosen(query, weights, keys, LENGTH)
    assert found.sum(1).tolist() == list(range(LENGTH - NEW + 1, LENGTH + 1))
    assert all(bool(row[: at + LENGTH - NEW + 1].all()) for at, row in enumerate(found))


def test_a_row_chooses_alike_in_any_company() -> None:
    query, weights, keys = made(1, NEW, HEADS, SIZE), made(2, NEW, HEADS), made(3, LENGTH, SIZE)
    together = chosen(query, weights, keys, 40)
    assert torch.equal(chosen(query[-1:], weights[-1:], keys, 40), together[-1:])
