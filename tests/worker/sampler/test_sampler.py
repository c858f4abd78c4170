"""The samplers against a slow one, the distribution that they should have, and each other."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.protocol.common import TokenSampling
from penstock_kernels import reference
from penstock_kernels.cpu import library
from penstock_kernels.cpu.sampler import Row, sample, uniform
from penstock_kernels.reference import SamplingCuts, sample_row, top_ids
from penstock_worker.sampler import (
    CPUSampler,
    ReferenceSampler,
    SampledToken,
    Sampler,
    SampleRequest,
    choose,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(params=["cpu", "reference"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return CPUSampler(threads=2) if request.param == "cpu" else ReferenceSampler()


def check_distribution(seen: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square of so many draws of each token, over those that are expected 5 times or more."""
    count = seen.sum()
    assert not seen[probabilities == 0].any()
    common = probabilities * count >= 5
    expected = np.append(probabilities[common], probabilities[~common].sum()) * count
    found = np.append(seen[common], seen[~common].sum())
    cells = expected > 0
    statistic = ((found[cells] - expected[cells]) ** 2 / expected[cells]).sum()
    freedom = cells.sum() - 1
    # Wilson and Hilferty's approximation of the 99.9% quantile.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound


def ask(emitted: int = 0, index: int = 0, **fields: object) -> SampleRequest:
    return SampleRequest(TokenSampling(**{"seed": 1, **fields}), index, emitted)


def slow_distribution(logits: np.ndarray, cuts: SamplingCuts) -> np.ndarray:
    """Everything sorted, nothing clever: temperature, top_k, top_p, min_p, in this order."""
    values = logits.astype(np.float64) / cuts.temperature
    order = sorted(range(len(values)), key=lambda token: (-logits[token], token))
    if cuts.top_k:
        order = order[: cuts.top_k]
    weights = {token: math.exp(values[token] - values[order[0]]) for token in order}
    if cuts.top_p < 1:
        wanted, held, kept = cuts.top_p * sum(weights.values()), 0.0, []
        for token in order:
            kept.append(token)
            held += weights[token]
            if held >= wanted:
                break
        order = kept
    order = [token for token in order if weights[token] >= cuts.min_p]
    probabilities = np.zeros(len(values))
    for token in order:
        probabilities[token] = weights[token]
    return probabilities / probabilities.sum()


def slow_draw(probabilities: np.ndarray, draw: float) -> int:
    cumulative = 0.0
    for token, probability in enumerate(probabilities):
        cumulative += probability
        if probability > 0 and draw < cumulative:
            return token
    return int(np.flatnonzero(probabilities)[-1])


CUTS = [
    SamplingCuts(),
    SamplingCuts(temperature=0.3),
    SamplingCuts(temperature=1.7, top_k=7),
    SamplingCuts(top_p=0.8),
    SamplingCuts(top_p=0.01),
    SamplingCuts(temperature=5.0, top_p=0.999),
    SamplingCuts(min_p=0.2),
    SamplingCuts(temperature=1.2, top_k=40, top_p=0.9, min_p=0.05),
    SamplingCuts(top_k=1),
    SamplingCuts(top_k=5000),
]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_equals_the_slow_sampler(cuts: SamplingCuts) -> None:
    rng = np.random.default_rng(2)
    for _ in range(4):
        # Rounded, so that ties are common.
        logits = (rng.standard_normal(1200) * 3).round(1).astype(np.float32)
        logits[rng.integers(0, 1200, 50)] = -np.inf
        probabilities = slow_distribution(logits, cuts)
        for draw in (0.0, *rng.random(60), 1 - 2**-53):
            token = sample_row(torch.from_numpy(logits), cuts, draw)
            assert token == slow_draw(probabilities, draw), draw
            assert probabilities[token] > 0


@pytest.mark.parametrize("cuts", [CUTS[0], CUTS[2], CUTS[3], CUTS[7]], ids=str)
def test_distribution(cuts: SamplingCuts) -> None:
    count = 4000
    logits = torch.randn(60, generator=torch.Generator().manual_seed(4)) * 2
    probabilities = slow_distribution(logits.numpy(), cuts)
    draws = reference.uniform([123] * count, [0] * count, list(range(count)))
    seen = np.bincount([sample_row(logits, cuts, draw) for draw in draws], minlength=60)
    check_distribution(seen, probabilities)


def test_a_draw_never_falls_on_an_impossible_token() -> None:
    logits = torch.full((10,), float("-inf"))
    logits[[3, 7]] = 0.0
    tokens = [sample_row(logits, SamplingCuts(), draw) for draw in (0.0, 0.49, 0.5, 1 - 2**-53)]
    assert tokens == [3, 3, 7, 7]


def test_tiny_temperature_is_greedy() -> None:
    logits = torch.tensor([1.0, 1.00001, -5.0])
    for temperature in (1e-8, 1e-308):
        assert sample_row(logits, SamplingCuts(temperature), 0.999) == 1


def test_top_ids_against_sorting() -> None:
    values = torch.randn(500, generator=torch.Generator().manual_seed(1)).mul(3).round()
    order = sorted(range(500), key=lambda token: (-float(values[token]), token))
    for count in (1, 2, 20, 499, 500, 900):
        assert top_ids(values, count).tolist() == order[:count]


def test_greedy_ties_go_to_the_lower_id(sampler: Sampler) -> None:
    logits = torch.zeros(3, 50_000)
    logits[0, [49_999, 40_000, 123]] = 2.0
    logits[1, [7, 8]] = 2.0
    choices = sampler.sample(logits, [ask(temperature=0.0)] * 3)
    assert [choice.token for choice in choices] == [123, 7, 0]


def test_a_draw_depends_on_seed_sequence_and_token_alone(sampler: Sampler) -> None:
    row = torch.randn(1, 300, generator=torch.Generator().manual_seed(0))
    asks = [
        ask(emitted, index, seed=seed)
        for seed in (1, 2**64 - 1)
        for index in (0, 1)
        for emitted in range(10)
    ]
    together = sampler.sample(row.repeat(len(asks), 1), asks)
    backwards = sampler.sample(row.repeat(len(asks), 1), asks[::-1])[::-1]
    assert together == backwards
    assert together == [sampler.sample(row, [each])[0] for each in asks]
    assert len({choice.token for choice in together}) > 20


def test_held_back_until_min_tokens(sampler: Sampler) -> None:
    logits = torch.tensor([[0.0, 9.0, 8.0, 7.0]])
    fields = {"temperature": 0.0, "min_tokens": 2, "held_back": (1, 2, 999), "logprobs": 1}
    early, late = (sampler.sample(logits, [ask(n, **fields)])[0] for n in (1, 2))
    assert early.token == 3
    assert late.token == 1
    assert early.logprobs.top_ids == (1,), "logprobs are of the raw distribution"
    drawn = {
        sampler.sample(logits, [ask(0, seed=s, min_tokens=1, held_back=(1, 2, 3))])[0].token
        for s in range(20)
    }
    assert drawn == {0}


def test_held_back_without_logprobs(sampler: Sampler) -> None:
    logits = torch.tensor([[0.0, 9.0, 8.0, 7.0]] * 3)
    fields = {"temperature": 0.0, "min_tokens": 2, "held_back": (1,)}
    asks = [ask(1, **fields), ask(2, **fields), ask(0, **fields | {"held_back": ()})]
    assert [choice.token for choice in sampler.sample(logits, asks)] == [2, 1, 1]
    alone = [sampler.sample(logits[:1], [each])[0].token for each in asks]
    assert alone == [2, 1, 1]


def test_log_probabilities_are_of_the_distribution(sampler: Sampler) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -200.0, 2.0]]) * 2
    true = torch.log_softmax(logits[0].double(), -1)
    (choice,) = sampler.sample(logits, [ask(temperature=0.0, logprobs=3)])
    assert choice.token == 1
    assert choice.logprobs.top_ids == (1, 2, 4)
    assert choice.logprobs.top_logprobs == pytest.approx(true[[1, 2, 4]].tolist(), abs=1e-5)
    assert choice.logprobs.logprob == choice.logprobs.top_logprobs[0]
    (none,) = sampler.sample(logits, [ask(temperature=0.0, logprobs=0)])
    assert none.logprobs.top_ids == ()
    assert none.logprobs.logprob == choice.logprobs.logprob
    assert sampler.sample(logits, [ask(temperature=0.0)])[0].logprobs is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_fails_alone(sampler: Sampler, bad: float) -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(6))
    clean = sampler.sample(logits, [ask()] * 3)
    logits[1, 20] = bad
    choices = sampler.sample(logits, [ask()] * 3)
    assert choices[0] == clean[0]
    assert choices[2] == clean[2]
    assert choices[1] == SampledToken(error="the model gave logits that are not finite numbers")
    greedy = sampler.sample(logits, [ask(temperature=0.0)] * 3)
    assert greedy[1] == choices[1]
    assert [greedy[row].token for row in (0, 2)] == logits[[0, 2]].argmax(-1).tolist()


ALL_CUTS = [
    SamplingCuts(*cuts)
    for cuts in itertools.product(
        (0.2, 1.0, 3.0), (0, 1, 20, 2000), (1.0, 0.9, 1e-6), (0.0, 0.1, 1.0)
    )
]


@pytest.mark.parametrize("vocab", [1, 17, 1500, 49_152])
def test_the_kernels_draw_as_the_reference_does(vocab: int) -> None:
    """A few in thousands may differ: where the order of a sum decides."""
    rng = np.random.default_rng(vocab)
    differ = count = 0
    for _ in range(1 if vocab > 10_000 else 10):
        logits = (rng.standard_normal((len(ALL_CUTS), vocab)) * 3).astype(np.float32)
        logits[::3] = logits[::3].round()
        draws = rng.random(len(ALL_CUTS)).tolist()
        held_back = tuple(rng.integers(0, vocab, 3).tolist()) if vocab > 3 else ()
        rows = [
            Row(*cuts, draw=draw, held_back=held_back)
            for cuts, draw in zip(ALL_CUTS, draws, strict=True)
        ]
        ours = sample(logits, rows, threads=2).tokens.tolist()
        logits[:, held_back] = -np.inf
        for row, (cuts, draw) in enumerate(zip(ALL_CUTS, draws, strict=True)):
            differ += ours[row] != sample_row(torch.from_numpy(logits[row]), cuts, draw)
            count += 1
    assert differ <= count / 1000


def test_the_kernels_numbers_are_the_references() -> None:
    rng = np.random.default_rng(1)
    seeds = [0, 2**64 - 1, *rng.integers(0, 2**64, 500, dtype=np.uint64).tolist()]
    sequences = [2**32 - 1, 0, *rng.integers(0, 2**32, 500).tolist()]
    tokens = [2**64 - 1, 0, *rng.integers(0, 2**40, 500).tolist()]
    ours = uniform(seeds, sequences, tokens).tolist()
    assert ours == reference.uniform(seeds, sequences, tokens)


def test_log_probabilities_of_huge_logits(sampler: Sampler) -> None:
    logits = torch.tensor([[3e38, -3e38, 3e38]])
    (choice,) = sampler.sample(logits, [ask(temperature=0.0, logprobs=3)])
    assert choice.logprobs.top_ids == (0, 2, 1)
    half = pytest.approx(-math.log(2))
    assert choice.logprobs.top_logprobs == (half, half, pytest.approx(-1e30))


def test_without_the_library_the_reference_samples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert isinstance(choose(1), CPUSampler)
    monkeypatch.setattr(library, "PATH", tmp_path / "nothing.so")
    library.load.cache_clear()
    try:
        assert isinstance(choose(1), ReferenceSampler)
    finally:
        monkeypatch.undo()
        library.load.cache_clear()
