"""Attention to tokens and entries, beside a softmax over all that a row sees, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels import reference

HEADS, SIZE, BLOCK, LENGTH, NEW, RATE, WINDOW = 3, 32, 16, 150, 20, 4, 21
TABLE = np.array([3, 0, 7, 5, 9, 1, 2, 4, 8, 6])
SLOTS = (len(TABLE) + 1) * BLOCK


def made(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


KEYS, ENTRIES, SINKS = made(1, LENGTH, SIZE), made(2, LENGTH // RATE, SIZE), made(3, HEADS)


def attended(query: Tensor, sinks: Tensor | None, chosen: Tensor | None = None) -> Tensor:
    """Attends for the last rows of a sequence; its blocks are scattered, entries lie backwards."""
    tokens, entries = torch.zeros(1, SLOTS, SIZE), torch.zeros(1, len(ENTRIES) + 1, SIZE)
    places = torch.from_numpy(TABLE.repeat(BLOCK) * BLOCK + np.tile(np.arange(BLOCK), len(TABLE)))
    reference.write_rows(KEYS[:, None], tokens, places[:LENGTH])
    backwards = np.arange(len(ENTRIES))[::-1].copy()
    reference.write_rows(ENTRIES[:, None], entries, torch.from_numpy(backwards))
    counts, at = np.array([len(query)]), np.arange(LENGTH - len(query), LENGTH)
    near = reference.plan_attention(
        [TABLE],
        counts,
        np.array([LENGTH]),
        block_size=BLOCK,
        zero_slot=SLOTS - BLOCK,
        group=HEADS,
    )
    far = reference.plan_attention(
        [backwards],
        counts,
        np.array([len(ENTRIES)]),
        block_size=1,
        zero_slot=len(ENTRIES),
        group=HEADS,
        last_seen=(at + 1) // RATE - 1,
    )
    parts = (
        reference.SeenRows(tokens, near, window=WINDOW),
        reference.SeenRows(entries, far, chosen=chosen),
    )
    return reference.attention_over(query, parts, SIZE**-0.5, sinks)


def one_by_one(query: Tensor, sinks: Tensor | None, chosen: Tensor | None = None) -> Tensor:
    found = torch.zeros_like(query)
    for row in range(len(query)):
        at = LENGTH - len(query) + row
        own = ENTRIES[: (at + 1) // RATE]
        if chosen is not None:
            own = own[chosen[row, : len(own)]]
        seen = torch.cat((KEYS[max(0, at - WINDOW + 1) : at + 1], own))
        for head in range(HEADS):
            scores = seen @ query[row, head] * SIZE**-0.5
            if sinks is not None:
                scores = torch.cat((scores, sinks[head, None]))
            found[row, head] = scores.softmax(0)[: len(seen)] @ seen
    return found


@pytest.mark.parametrize("sinks", [SINKS, None], ids=["sinks", "none"])
def test_one_softmax_over_both(sinks: Tensor | None) -> None:
    query, chosen = made(4, NEW, HEADS, SIZE), made(5, NEW, 64) > 0.5
    assert torch.allclose(attended(query, sinks), one_by_one(query, sinks), atol=1e-5)
    few = attended(query, sinks, chosen)
    assert torch.allclose(few, one_by_one(query, sinks, chosen), atol=1e-5)


def test_a_row_that_sees_no_entry_and_padding() -> None:
    """The first rows of a sequence, before its first entry is complete."""
    query, whole = made(4, LENGTH, HEADS, SIZE), made(6, LENGTH + 2, HEADS, SIZE)
    assert torch.allclose(attended(query, SINKS), one_by_one(query, SINKS), atol=1e-5)
    whole[:LENGTH] = query
    counts = np.array([3])
    near = reference.plan_attention(
        [np.array([0])], counts, counts, block_size=BLOCK, zero_slot=BLOCK, group=HEADS
    )
    found = reference.attention_over(
        whole, (reference.SeenRows(torch.zeros(1, 2 * BLOCK, SIZE), near),), 1.0, None
    )
    assert not found.any()


def test_rows_are_alike_in_any_company() -> None:
    query = made(4, NEW, HEADS, SIZE)
    assert torch.equal(attended(query[-3:], SINKS), attended(query, SINKS)[-3:])


def test_entries_are_weighed_number_by_number() -> None:
    values, logits = made(7, 5, 8, SIZE), 3 * made(8, 5, 8, SIZE)
    there = torch.ones(5, 8, dtype=torch.bool)
    there[0, :4] = False
    weights = logits.masked_fill(~there[..., None], float("-inf")).softmax(1)
    found = reference.entries_of(values, logits, there)
    assert torch.allclose(found, (weights * values).sum(1), atol=1e-6)
    assert torch.equal(reference.entries_of(values[3:4], logits[3:4], there[3:4]), found[3:4])


def test_what_is_not_there_has_no_part_in_an_entry() -> None:
    """Not even if memory that wasn't written holds something that isn't a number."""
    values, logits = made(7, 1, 8, SIZE), made(8, 1, 8, SIZE)
    there = torch.arange(8)[None] >= 4
    spoilt = values.clone(), logits.clone()
    for each in spoilt:
        each[:, :4] = float("nan")
    assert torch.equal(
        reference.entries_of(*spoilt, there), reference.entries_of(values, logits, there)
    )


def test_the_last_numbers_turn_by_neighbours_and_back() -> None:
    head, angles = made(9, 7, HEADS, SIZE), made(10, 7, 4)
    turned = reference.apply_rope_last(head, angles.cos(), angles.sin())
    pairs = torch.view_as_complex(head[..., -8:].unflatten(-1, (4, 2)).contiguous())
    wanted = torch.view_as_real(pairs * torch.polar(torch.ones(7, 1, 4), angles[:, None]))
    assert torch.equal(turned[..., :-8], head[..., :-8])
    assert torch.allclose(turned[..., -8:], wanted.flatten(-2), atol=1e-6)
    back = reference.apply_rope_last(turned, angles.cos(), -angles.sin())
    assert torch.allclose(back, head, atol=1e-5)
