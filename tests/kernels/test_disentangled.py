"""Attention whose scores know distances, in torch: against float64, and an input in any company."""

from __future__ import annotations

import pytest
import torch

from penstock_kernels.reference.disentangled import Distances, attend_disentangled, distance_rows

HEADS, DIM, SPAN, LONGEST = 3, 8, 8, 70


def _distances(*, keys: bool, queries: bool) -> Distances:
    torch.manual_seed(2)
    made = [torch.randn(HEADS, 2 * SPAN, DIM) if wanted else None for wanted in (keys, queries)]
    return Distances(distance_rows(SPAN, 40, LONGEST), made[0], made[1], 0.13)


def _wanted(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, told: Distances, keys: int
) -> torch.Tensor:
    out = torch.zeros(query.shape, dtype=torch.float64)
    for head in range(HEADS):
        for row in range(len(query)):
            scores = []
            for other in range(keys):
                at = told.rows[row - other + LONGEST - 1]
                score = query[row, head] @ key[other, head]
                if told.keys is not None:
                    score = score + query[row, head] @ told.keys[head, at].double()
                if told.queries is not None:
                    score = score + key[other, head] @ told.queries[head, at].double()
                scores.append(score * told.scale)
            out[row, head] = torch.stack(scores).softmax(0) @ value[:keys, head]
    return out


@pytest.mark.parametrize(("keys", "queries"), [(True, True), (True, False), (False, True)])
def test_inputs_alone_and_in_company(keys: bool, queries: bool) -> None:
    told = _distances(keys=keys, queries=queries)
    lengths, seen = [5, 1, 33, LONGEST], [5, 1, 20, LONGEST]
    rows = [torch.randn(3, length, HEADS, DIM) for length in lengths]
    padding = torch.zeros(3, 7, HEADS, DIM)
    found = attend_disentangled(*torch.cat([*rows, padding], 1), lengths, told, seen)
    assert not bool(found[sum(lengths) :].any())
    parts = found[: sum(lengths)].split(lengths)
    for own, part, length, count in zip(rows, parts, lengths, seen, strict=True):
        assert torch.equal(attend_disentangled(*own, [length], told, [count]), part)
        assert (_wanted(*own.double(), told, count) - part).abs().max() < 1e-5
