"""Sums over ranks: whole or in halves, the bits are those of adding in order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from penstock_worker.parallel import ranks as communication
from penstock_worker.parallel.ranks import Ranks, in_halves, sum_in_halves, sum_whole
from tests.worker.parallel.together import Formed

pytestmark = pytest.mark.timeout(240)

SHAPES = ((1, 1), (3, 33), (5, 64), (7, 129))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def drawn(tensor: int, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """What each rank has, of sizes so different that another order would give other bits."""
    drawn = torch.randn(tensor, *shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (drawn * torch.logspace(2, -2, tensor)[:, None, None]).to(dtype)


def added_in_order(parts: Tensor) -> Tensor:
    """Element by element in numpy's float32."""
    total = parts[0].float().numpy().copy()
    for part in parts[1:].float().numpy():
        total = total + part
    return torch.from_numpy(total).to(parts.dtype)


@pytest.mark.parametrize("tensor", [2, 3, 4])
def test_both_forms_have_the_bits_of_adding_in_order(tensor: int) -> None:
    with Formed(tensor) as formed:
        for dtype in DTYPES:
            for shape in SHAPES:
                parts = drawn(tensor, shape, dtype)
                wanted = added_in_order(parts)

                def both(ranks: Ranks, parts: Tensor = parts) -> list[Tensor]:
                    mine, group = parts[ranks.place.rank], ranks._group
                    return [sum_whole(group, mine), sum_in_halves(group, mine, tensor)]

                for found in formed.each(both):
                    assert all(torch.equal(each, wanted) for each in found), (dtype, shape)


def test_the_order_matters() -> None:
    parts = drawn(3, (7, 129), torch.float32)
    assert not torch.equal(added_in_order(parts), added_in_order(parts.flip(0)))


def test_a_transposed_tensor_is_summed_as_what_it_holds() -> None:
    parts = drawn(3, (6, 10), torch.float32)
    with Formed(3) as formed:

        def halves(ranks: Ranks) -> Tensor:
            return sum_in_halves(ranks._group, parts[ranks.place.rank].T, 3)

        assert all(torch.equal(each, added_in_order(parts).T) for each in formed.each(halves))


def test_the_form_follows_from_ranks_and_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_halves(2, 1 << 40)  # As much data either way.
    assert not in_halves(4, 1 << 20)
    assert in_halves(4, 2 << 20)
    assert in_halves(8, 1 << 20)
    halved = []

    def watched(group: object, x: Tensor, tensor: int) -> Tensor:
        halved.append(x.shape)
        return sum_in_halves(group, x, tensor)

    monkeypatch.setattr("penstock_worker.parallel.ranks.sum_in_halves", watched)
    monkeypatch.setattr(communication, "ROUND_BYTES", 1000)
    with Formed(3) as formed:
        for rows in (1, 100):
            parts = drawn(3, (rows, 16), torch.bfloat16)
            found = formed.each(lambda ranks, parts=parts: ranks.sum(parts[ranks.place.rank]))
            assert all(torch.equal(each, added_in_order(parts)) for each in found)
    assert halved == [(100, 16)] * 3


def test_columns_that_are_as_many_everywhere_are_joined_without_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.nn.functional, "pad", None)  # Would be called.
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    with Formed(2) as formed:
        found = formed.each(
            lambda ranks: ranks.join_columns(rows.chunk(2, 1)[ranks.place.rank], [4, 4])
        )
    assert all(torch.equal(each, rows) for each in found)
