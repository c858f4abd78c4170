"""Rows that are cut into parts: the reference's tokens, whatever the parts and the other rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from penstock_kernels import reference
from penstock_kernels.triton.sampling import sample
from penstock_kernels.triton.sampling.row_parts import LISTED, weigh_parts
from penstock_kernels.triton.sampling.sample import SORTED, SamplingRows, sample_rows
from penstock_kernels.triton.sampling.survivors import list_survivors
from penstock_kernels.triton.tiles import SAMPLING_PART, PartTiles
from tests.kernels.triton.sampling_kernels import draw_at, weigh_each
from tests.kernels.triton.test_sampling import asked, expected, logits_of, on

pytestmark = pytest.mark.timeout(240)

SMALL = PartTiles(part=64, block=64, warps=2)
BLOCKS = PartTiles(part=128, block=64, warps=2)


def uncut(rows: SamplingRows) -> SamplingRows:
    off = torch.zeros_like(rows.min_p)
    numbers = rows.seed, rows.sequence, rows.token
    return SamplingRows(rows.temperature, torch.zeros_like(rows.top_k), off + 1.0, off, *numbers)


@pytest.mark.parametrize("vocab", [1, 7, SAMPLING_PART - 1, SAMPLING_PART, SAMPLING_PART + 1])
def test_vocabularies_around_a_part(vocab: int, device: torch.device) -> None:
    logits, wants = logits_of("plain", 3, vocab), asked(3, vocab)
    ours = sample_rows(logits.to(device), on(device, wants)).tolist()
    assert ours == expected(logits, wants)
    whole = uncut(wants)
    ours = sample_rows(logits.to(device), on(device, whole), cuts=False).tolist()
    assert ours == expected(logits, whole)


@pytest.mark.parametrize("kind", ["plain", "ties", "holes"])
def test_many_parts(kind: str, device: torch.device) -> None:
    """Short lists, which are sorted, give the same as long ones."""
    logits, wants = logits_of(kind, 8, 331), asked(8, len(kind))
    tokens = expected(logits, wants)
    for short in (SORTED, 64, 16):
        ours = sample_rows(logits.to(device), on(device, wants), tiles=BLOCKS, short=short)
        assert ours.tolist() == tokens, short
    whole = uncut(wants)
    ours = sample_rows(logits.to(device), on(device, whole), tiles=BLOCKS, cuts=False).tolist()
    assert ours == expected(logits, whole)


@pytest.mark.parametrize("cuts", [False, True])
def test_other_rows_and_groups_of_rows_change_nothing(
    cuts: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, wants = logits_of("plain", 5, 200), asked(5, 5)
    wants = wants if cuts else uncut(wants)
    together = sample_rows(logits.to(device), on(device, wants), tiles=SMALL, cuts=cuts).tolist()
    monkeypatch.setattr(sample, "CUT_ROWS", 2)
    grouped = sample_rows(logits.to(device), on(device, wants), tiles=SMALL, cuts=cuts).tolist()
    assert grouped == together
    for row in range(5):
        of = slice(row, row + 1)
        alone = sample_rows(logits[of].to(device), on(device, wants, of), tiles=SMALL, cuts=cuts)
        assert alone.tolist() == together[of]


@pytest.mark.parametrize("place", [0, 63, 64, 199])
def test_all_but_one_can_not_be_drawn(place: int, device: torch.device) -> None:
    logits = torch.full((6, 200), float("-inf"))
    logits[:, place] = -3.0
    wants = asked(6, place)
    for rows, cuts in ((wants, True), (uncut(wants), False)):
        ours = sample_rows(logits.to(device), on(device, rows), tiles=SMALL, cuts=cuts)
        assert ours.tolist() == [place] * 6


@pytest.mark.parametrize("level", [0.0, 3.7, -250.0, 1e4, -3e30])
def test_weights_are_as_precise_as_logits_at_any_depth(level: float, device: torch.device) -> None:
    """Against float64, from a weight of 1 to the least that float64 has in full."""
    temperatures = torch.tensor([1e-300, 1e-6, 0.01, 0.7, 1.0, 2.3, 50.0, 1e6], dtype=torch.float64)
    count = len(temperatures)
    draw = torch.Generator().manual_seed(5)
    depths = torch.rand(count, 512, generator=draw, dtype=torch.float64) * 720
    depths[:, :256] *= 0.03
    peaks = torch.full((count,), level)
    logits = (peaks[:, None] - depths * temperatures[:, None]).float()
    logits = torch.minimum(logits, peaks[:, None])
    logits[:, 0], logits[:, 1], logits[:, 2] = level, float("-inf"), -3e38
    weights = torch.empty(count, 512, dtype=torch.float64, device=device)
    given = [each.to(device) for each in (logits, peaks, temperatures)]
    weigh_each[(count,)](*given, weights, BLOCK=512)
    wanted = torch.exp((logits.double() - peaks.double()[:, None]) / temperatures[:, None])
    found = weights.cpu()
    assert torch.equal(found[logits == level], torch.ones(int((logits == level).sum())).double())
    normal = wanted > 1e-307
    apart = (found - wanted).abs() / wanted.clamp(min=1e-307)
    assert apart[normal].max() < 3e-7
    assert (found[~normal] < 1e-306).all()


def test_draws_that_fall_on_a_parts_edge(device: torch.device) -> None:
    """There are 256 equal logits, whose cumulative weights are whole numbers; and some with a part
    that can't be drawn."""
    places = (0, 63, 64, 65, 128, 192, 255)
    draws = [place / 256 for place in places] + [math.nextafter(place / 256, 0) for place in places]
    draws.append(1 - 2.0**-53)
    logits = torch.zeros(2, 256)
    logits[1, 64:128] = float("-inf")
    for row in logits:
        ours = drawn_at(row.repeat(len(draws), 1).to(device), draws)
        assert ours == [reference.sample_row(row, reference.SamplingCuts(), each) for each in draws]


def drawn_at(logits: Tensor, draws: list[float]) -> list[int]:
    rows, vocab = logits.shape
    given = uncut(asked(rows, 0))
    temperature = torch.ones(rows, dtype=torch.float64)
    given = SamplingRows(temperature, *list(vars(given).values())[1:])
    stats, _ = weigh_parts(logits, on(logits.device, given), SMALL, holes=True, cuts=False)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    draw_at[(rows,)](
        logits,
        stats,
        torch.tensor(draws, dtype=torch.float64, device=logits.device),
        tokens,
        1.0,
        vocab,
        SMALL.parts(vocab),
        PART=SMALL.part,
        PARTS=SMALL.part_block(vocab),
        BLOCK=SMALL.block,
        num_warps=SMALL.warps,
    )
    return tokens.tolist()


@pytest.mark.parametrize(
    ("rows", "vocab", "shorts"), [(24, 100, (128, 16)), (1, SORTED, (SORTED,))]
)
def test_sorted_lists_of_ties(
    rows: int, vocab: int, shorts: tuple[int, ...], device: torch.device
) -> None:
    """All logits are one of three, so that top_k and top_p cut within equal ones: the lower ids
    are kept, in a list that registers hold and in one that is longer."""
    draw = torch.Generator().manual_seed(9)
    logits = torch.randint(0, 3, (rows, vocab), generator=draw).float()
    wants = asked(rows, 11)
    wants.top_k[:] = torch.randint(1, vocab, (rows,), generator=draw)
    wants.top_k[1::3] = 0
    wants.temperature[:] = 3.0
    tokens = expected(logits, wants)
    for short in shorts:
        ours = sample_rows(logits.to(device), on(device, wants), short=short)
        assert ours.tolist() == tokens, short


CUTS = {
    "top_k": reference.SamplingCuts(0.7, top_k=30),
    "top_k, cold": reference.SamplingCuts(0.01, top_k=30),
    "top_p": reference.SamplingCuts(0.8, top_p=0.9),
    "top_p, hot": reference.SamplingCuts(3.0, top_p=0.5),
    "top_p, nearly all": reference.SamplingCuts(1.0, top_p=1 - 2.0**-53),
    "min_p": reference.SamplingCuts(0.8, min_p=0.02),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CUTS)
def test_candidates_are_all_that_may_be_kept_and_few_more(name: str, device: torch.device) -> None:
    cuts, vocab = CUTS[name], 1500
    logits = torch.randn(2, vocab, generator=torch.Generator().manual_seed(3)) * 3
    logits[1] += 1e4  # Where float32 is coarse.
    logits[1, :900] = float("-inf")
    numbers = torch.zeros(2, dtype=torch.int64)
    rows = SamplingRows(
        torch.full((2,), cuts.temperature, dtype=torch.float64),
        torch.full((2,), cuts.top_k, dtype=torch.int32),
        *(torch.full((2,), each, dtype=torch.float64) for each in (cuts.top_p, cuts.min_p)),
        *(numbers, numbers, numbers),
    )
    given = logits.to(device), on(device, rows)
    stats, counts = weigh_parts(*given, SMALL, holes=True, cuts=True)
    assert counts is not None
    ids, weights = list_survivors(*given, stats, counts, SMALL)
    for row, each in enumerate(logits):
        count = int(stats[row, LISTED.value, 0])
        listed = ids[row, :count].tolist()
        assert listed == sorted(set(listed))
        relative = torch.exp((each.double() - each.double().max()) / cuts.temperature)
        assert torch.allclose(weights[row, :count].cpu(), relative[listed], rtol=3e-7, atol=0)
        kept = kept_by(each, relative, cuts)
        assert kept <= set(listed)
        if cuts.top_p < 0.99:
            assert count <= 2 * len(kept) + 2


def kept_by(logits: Tensor, weights: Tensor, cuts: reference.SamplingCuts) -> set[int]:
    order = reference.top_ids(logits, len(logits))
    if cuts.top_k:
        order = order[: cuts.top_k]
    if cuts.top_p < 1.0:
        held = torch.cumsum(weights[order], 0)
        order = order[: int((held < cuts.top_p * weights.sum()).sum()) + 1]
    return {
        int(token)
        for token in order
        if weights[token] >= cuts.min_p and math.isfinite(logits[token])
    }
