"""The choice of the tokens that attention reads, or of blocks of them, beside one that goes through
them one by one."""

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
    return reference.choose_tokens(query, weights, *laid_out(len(query), keys), most)


def laid_out(rows: int, keys: Tensor) -> tuple[Tensor, reference.AttentionPlan]:
    cache = torch.zeros(1, SLOTS, SIZE)
    places = torch.from_numpy(TABLE.repeat(BLOCK) * BLOCK + np.tile(np.arange(BLOCK), len(TABLE)))
    reference.write_rows(keys[:, None], cache, places[:LENGTH])
    plan = reference.plan_attention(
        [TABLE],
        np.array([rows]),
        np.array([LENGTH]),
        block_size=BLOCK,
        zero_slot=SLOTS - BLOCK,
        group=HEADS,
    )
    return cache, plan


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


def chosen_blocks(query: Tensor, keys: Tensor, block: int, most: int, local: int) -> Tensor:
    cache, plan = laid_out(len(query), keys)
    return reference.choose_blocks(query, cache, plan, block=block, most=most, local=local)


def block_by_block(
    query: Tensor, keys: Tensor, block: int, most: int, local: int
) -> list[list[set[int]]]:
    """The positions of each row and head."""
    found = []
    for row in range(len(query)):
        own = LENGTH - len(query) + row
        blocks = [range(at, min(at + block, own + 1)) for at in range(0, own + 1, block)]
        for head in range(HEADS):
            scores = [
                max(float(query[row, head] @ keys[at]) for at in positions)
                if number <= own // block - local
                else float("inf")
                for number, positions in enumerate(blocks)
            ]
            best = sorted(range(len(blocks)), key=lambda at: (-scores[at], at))[:most]
            found.append({at for number in best for at in blocks[number]})
    return [found[at : at + HEADS] for at in range(0, len(found), HEADS)]


@pytest.mark.parametrize(
    ("block", "most", "local"), [(16, 3, 1), (16, 8, 2), (24, 2, 2), (64, 2, 1)]
)
def test_the_blocks_of_the_highest_scores_are_chosen(block: int, most: int, local: int) -> None:
    query, keys = made(1, NEW, HEADS, SIZE), made(3, LENGTH, SIZE)
    whole = (query * 0.7).round(), keys.round()  # Whole numbers: many ties.
    for each in ((query, keys), whole):
        found = chosen_blocks(*each, block, most, local)
        wanted = block_by_block(*each, block, most, local)
        assert [[set(head.nonzero()[:, 0].tolist()) for head in row] for row in found] == wanted


def test_of_equal_scores_the_first_blocks_are_chosen() -> None:
    """And the row's own, of which it sees a part."""
    found = chosen_blocks(made(1, NEW, HEADS, SIZE), torch.zeros(LENGTH, SIZE), 16, 3, 1)
    own = LENGTH - NEW + torch.arange(NEW)
    for row, last in zip(found, own.tolist(), strict=True):
        read = [*range(32), *range(last // 16 * 16, last + 1)]
        assert [head.nonzero()[:, 0].tolist() for head in row] == [read] * HEADS


def test_a_row_chooses_blocks_alike_in_any_company() -> None:
    query, keys = made(1, NEW, HEADS, SIZE), made(3, LENGTH, SIZE)
    together = chosen_blocks(query, keys, 16, 3, 1)
    assert torch.equal(chosen_blocks(query[-1:], keys, 16, 3, 1), together[-1:])
