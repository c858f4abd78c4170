"""Mixtures of experts against plain torch, and a row against itself in other company."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.experts.gguf_products import expert_gguf
from penstock_kernels.triton.experts.placing import ExpertTiles, most_tiles, place_rows
from penstock_kernels.triton.experts.products import expert_linear
from penstock_kernels.triton.experts.routing import RoutingRule, route
from penstock_kernels.triton.experts.sums import sum_experts
from penstock_kernels.triton.matmul_tiles import EXPERTS, EXPERTS_FEW, EXPERTS_MANY, expert_tiles
from tests.kernels.triton.test_gguf_linear import kept, true

pytestmark = pytest.mark.timeout(300)

ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def routed(raw: list[float], rule: RoutingRule, correction: list[float]) -> dict[int, float]:
    """A row's experts and their weights, one number after another, in float64."""
    scores = torch.tensor(raw, dtype=torch.float64)
    scores = scores.sigmoid() if rule.sigmoid else scores.softmax(0)
    ranked = {number: float(scores[number]) + correction[number] for number in range(rule.count)}
    per = rule.count // rule.groups
    groups = [list(range(group * per, (group + 1) * per)) for group in range(rule.groups)]
    if rule.groups > 1:
        best = {
            group: sum(sorted(ranked[number] for number in groups[group])[-rule.group_best :])
            for group in range(rule.groups)
        }
        kept = sorted(best, key=lambda group: -best[group])[: rule.active_groups]
        ranked = {number: ranked[number] for group in kept for number in groups[group]}
    chosen = sorted(sorted(ranked, key=lambda number: -ranked[number])[: rule.active])
    total = sum(float(scores[number]) for number in chosen) if rule.normalised else 1.0
    return {number: float(scores[number]) / total * rule.scale for number in chosen}


RULES = [
    RoutingRule(5, 2),
    RoutingRule(8, 3, normalised=False, scale=2.5),
    RoutingRule(12, 3, sigmoid=True, scale=1.5, groups=4, active_groups=2),
    RoutingRule(12, 4, groups=4, active_groups=2, group_best=1, normalised=False),
    RoutingRule(1, 1),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_routing(rule: RoutingRule, device: torch.device) -> None:
    raw, correction = drawn(1, 9, rule.count) * 2, drawn(2, rule.count) * 0.1
    corrected = rule.sigmoid
    there = correction.to(device) if corrected else None
    chosen, weights = route(raw.to(device), rule, there)
    added = correction.double().tolist() if corrected else [0.0] * rule.count
    for row, numbers, found in zip(raw.tolist(), chosen.tolist(), weights.tolist(), strict=True):
        wanted = routed(row, rule, added)
        assert numbers == list(wanted)
        assert found == pytest.approx(list(wanted.values()), rel=1e-5)
    alone = route(raw[4:5].to(device), rule, there)
    assert torch.equal(alone[0], chosen[4:5])
    assert torch.equal(alone[1], weights[4:5])


def test_equal_scores_and_no_scores(device: torch.device) -> None:
    """The first of equals; whatever the numbers are, experts exist."""
    chosen, weights = route(torch.zeros(1, 6, device=device), RoutingRule(6, 3), None)
    assert chosen.tolist() == [[0, 1, 2]]
    assert weights.sum().item() == pytest.approx(1.0)
    broken = torch.full((1, 6), float("nan"), device=device)
    chosen, weights = route(broken, RoutingRule(6, 3), None)
    assert all(0 <= number < 6 for number in chosen[0].tolist())
    assert weights.isnan().all()


def choices(seed: int, rows: int, active: int, experts: int, device: torch.device) -> Tensor:
    """Each row's experts, ascending."""
    made = drawn(seed, rows, experts).topk(active).indices.sort(-1).values
    return made.to(torch.int32).to(device)


@pytest.mark.parametrize(
    ("rows", "active", "experts"), [(1, 1, 1), (1, 2, 40), (70, 2, 5), (19, 3, 6)]
)
@pytest.mark.parametrize("tile", [16, 64])
def test_each_pair_has_a_place_in_a_tile_of_its_expert(
    rows: int, active: int, experts: int, tile: int, device: torch.device
) -> None:
    chosen = choices(3, rows, active, experts, device)
    placed = place_rows(chosen, experts, tile)
    assert len(placed.counts) == most_tiles(rows * active, experts, tile)
    order, flat = placed.order.tolist(), chosen.flatten().tolist()
    seen = []
    lists = (placed.experts, placed.firsts, placed.counts)
    for expert, first, count in zip(*(each.tolist() for each in lists), strict=True):
        assert 0 <= count <= tile
        pairs = order[first : first + count]
        assert all(flat[pair] == expert for pair in pairs)
        seen += pairs
    assert sorted(seen) == list(range(rows * active))


def test_all_rows_want_the_same_experts(device: torch.device) -> None:
    """The list of tiles is long enough, and not all of it is needed."""
    chosen = torch.tensor([[2, 6]] * 40, dtype=torch.int32, device=device)
    placed = place_rows(chosen, 7, 16)
    assert sorted(placed.counts.tolist(), reverse=True)[:7] == [16, 16, 16, 16, 8, 8, 0]


@pytest.mark.parametrize("tiles", [EXPERTS, EXPERTS_FEW, EXPERTS_MANY], ids=str)
def test_products_of_experts_equal_each_pairs_own(
    tiles: object, dtype: torch.dtype, device: torch.device
) -> None:
    """Several pairs share rows, and each pair has a row of its own."""
    experts, outputs, inputs, active = 4, 70, 130, 2
    weight = drawn(1, experts, outputs, inputs).to(dtype)
    bias = drawn(2, experts, outputs).to(dtype)
    chosen = choices(3, 37, active, experts, device)
    placed = place_rows(chosen, experts, tiles.rows)
    number = chosen.flatten().long().cpu()
    for rows in (37, 37 * active):
        x = drawn(4, rows, inputs).to(dtype)
        ours = expert_linear(x.to(device), weight.to(device), placed, bias.to(device), tiles=tiles)
        each = x.double() if rows > 37 else x.double().repeat_interleave(active, 0)
        matrix = weight.double()[number]
        wanted = torch.einsum("pi,poi->po", each, matrix) + bias.double()[number]
        size = torch.einsum("pi,poi->po", each.abs(), matrix.abs()) + 1
        far = (ours.cpu().double() - wanted).abs()
        assert (far <= wanted.abs() * ROUNDING[dtype] + size * 1e-6).all(), far.max()


@pytest.mark.parametrize("kind", ["Q4_K", "MXFP4", "Q6_K", "Q8_0"])
def test_packed_matrices(kind: str, device: torch.device) -> None:
    """They equal products with the weights that the file means; a row's bits are its own."""
    experts, outputs, inputs = 3, 70, 256
    weights = kept(kind, experts * outputs, inputs, device)
    weight = true(kind, experts * outputs, inputs).unflatten(0, (experts, outputs))
    bias, x = drawn(2, experts, outputs), drawn(4, 9, inputs).bfloat16()
    chosen = choices(3, 9, 2, experts, device)
    number = chosen.flatten().long().cpu()

    def compute(rows: slice) -> Tensor:
        placed = place_rows(chosen[rows], experts, EXPERTS_FEW.rows)
        there = x[rows].to(device)
        return expert_gguf(there, weights, experts, placed, bias.to(device), tiles=EXPERTS_FEW)

    ours = compute(slice(None))
    each, matrix = x.double().repeat_interleave(2, 0), weight.double()[number]
    wanted = torch.einsum("pi,poi->po", each, matrix) + bias.double()[number]
    size = torch.einsum("pi,poi->po", each.abs(), matrix.abs()) + 1
    far = (ours.cpu().double() - wanted).abs()
    assert (far <= wanted.abs() * 2.0**-8 + size * 1e-5).all(), far.max()
    assert torch.equal(compute(slice(4, 5)), ours[8:10])


def mixture(x: Tensor, device: torch.device) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A function of rows of x: each row's sum over its experts, chosen by the row itself."""
    experts, outputs = 5, 40
    router, weight = drawn(7, experts, x.shape[1]), drawn(8, experts, outputs, x.shape[1])
    there = weight.to(x.dtype).to(device)

    def compute(rows: Tensor) -> Tensor:
        raw = expert_linear(rows, router.to(x.dtype).to(device)[None], _one(rows))
        chosen, weights = route(raw, RoutingRule(experts, 2), None)
        placed = place_rows(chosen, experts, EXPERTS_FEW.rows)
        return sum_experts(expert_linear(rows, there, placed, tiles=EXPERTS_FEW), weights)

    return compute, x.to(device)


def _one(rows: Tensor) -> ExpertTiles:
    chosen = torch.zeros(len(rows), 1, dtype=torch.int32, device=rows.device)
    return place_rows(chosen, 1, EXPERTS.rows)


def test_a_rows_sum_has_the_same_bits_in_any_company(
    dtype: torch.dtype, device: torch.device
) -> None:
    """Alone, among others and at another place; so many that an expert has several tiles."""
    compute, rows = mixture(drawn(5, 45, 72).to(dtype), device)
    whole = compute(rows)
    assert whole.isfinite().all()
    for start, count in ((0, 1), (44, 1), (3, 6)):
        assert torch.equal(compute(rows[start : start + count]), whole[start : start + count])
    assert torch.equal(compute(rows.flip(0)).flip(0), whole)


def test_tiles_by_number_of_pairs() -> None:
    for invariant in (False, True):
        found = [
            expert_tiles(pairs, 8, batch_invariant=invariant) for pairs in (128, 129, 2047, 2048)
        ]
        assert found == [EXPERTS_FEW, EXPERTS, EXPERTS, EXPERTS_MANY]
    assert expert_tiles(2048, 8, batch_invariant=False, packed=True) == EXPERTS
    for pairs in (1, 128, 129, 100_000):
        assert expert_tiles(pairs, 8, batch_invariant=True, packed=True) == EXPERTS


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
def test_tiles_of_plain_weights_give_the_same_bits(
    narrow: torch.dtype, device: torch.device
) -> None:
    """On a GPU they are as wide as a large model's experts are."""
    experts, outputs, inputs = (8, 1536, 2048) if device.type == "cuda" else (3, 70, 130)
    weight = drawn(1, experts, outputs, inputs).to(narrow).to(device)
    x = drawn(4, 37, inputs).to(narrow).to(device)
    chosen = choices(3, 37, 2, experts, device)
    found = [
        expert_linear(x, weight, place_rows(chosen, experts, tiles.rows), tiles=tiles)
        for tiles in (EXPERTS_FEW, EXPERTS, EXPERTS_MANY)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_sums_are_in_order(device: torch.device) -> None:
    x, weights = drawn(1, 6, 50), drawn(2, 2, 3)
    ours = sum_experts(x.to(device), weights.to(device)).cpu().double()
    wanted = (x.double().view(2, 3, 50) * weights.double()[..., None]).sum(1)
    assert (ours - wanted).abs().max() < 1e-6
