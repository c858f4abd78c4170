"""Penalties, bias, allowed ids and bad words: both samplers beside a slow, obvious one."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock_kernels import reference
from penstock_worker.sampler import (
    CPUSampler,
    ReferenceSampler,
    Sampler,
    SampleRequest,
    adjustments_of,
)
from tests.met import met
from tests.thinning import part
from tests.worker.sampler.test_sampler import check_distribution

pytestmark = pytest.mark.timeout(240)

EDGE = 1e-9
"""How near to a boundary the order of a sum may decide."""


@pytest.fixture(params=["cpu", "reference"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return make_sampler(request.param)


def make_sampler(name: str) -> Sampler:
    return CPUSampler(threads=1) if name == "cpu" else ReferenceSampler()


def ask(sampling: TokenSampling, prompt: list[int], output: list[int], vocab: int) -> SampleRequest:
    rules = adjustments_of(sampling, prompt + output, len(prompt), vocab)
    return SampleRequest(sampling, 0, len(output), None, rules)


def slow_logits(
    logits: np.ndarray, wanted: LogitsAdjustments, prompt: list[int], output: list[int]
) -> dict[int, float]:
    """What may be chosen, by id, and its logit: every rule as its definition reads."""
    kept: dict[int, float] = {}
    counts = Counter(output)
    for token, value in enumerate(logits.tolist()):
        if wanted.allowed is not None and token not in wanted.allowed:
            continue
        if any(ends_word(word, output, token) for word in wanted.bad_words):
            continue
        logit = float(np.float32(value + wanted.bias.get(token, 0.0)))
        if token in prompt or token in output:
            logit = logit / wanted.repetition if logit > 0 else logit * wanted.repetition
        logit -= wanted.frequency * counts[token] + wanted.presence * (counts[token] > 0)
        kept[token] = logit
    return kept


def ends_word(word: tuple[int, ...], output: list[int], token: int) -> bool:
    before = list(word[:-1])
    return word[-1] == token and (not before or output[-len(before) :] == before)


def slow_weights(kept: dict[int, float], sampling: TokenSampling) -> dict[int, float]:
    """Temperature, top_k, top_p, min_p, in this order; everything sorted."""
    order = sorted(kept, key=lambda token: (-kept[token], token))
    if sampling.temperature == 0:
        return {order[0]: 1.0}
    if sampling.top_k:
        order = order[: sampling.top_k]
    most = kept[order[0]]
    weights = {token: math.exp((kept[token] - most) / sampling.temperature) for token in order}
    total, held, nucleus = sum(weights.values()), 0.0, []
    for token in order:
        nucleus.append(token)
        held += weights[token]
        if sampling.top_p < 1 and held >= sampling.top_p * total:
            break
    return {token: weights[token] for token in sorted(nucleus) if weights[token] >= sampling.min_p}


VOCAB = 24
ids = st.integers(0, VOCAB - 1)
words = st.lists(ids, min_size=1, max_size=3).map(tuple)
penalties = st.sampled_from([-2.0, -0.5, 0.0, 0.0, 0.7, 2.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, TokenSampling, list[int], list[int]]:
    wanted = LogitsAdjustments(
        presence=draw(penalties),
        frequency=draw(penalties),
        repetition=draw(st.sampled_from([1.0, 1.0, 0.5, 1.3, 5.0])),
        bias=draw(st.dictionaries(ids, st.sampled_from([-100.0, -1.5, 2.0, 100.0]), max_size=5)),
        allowed=draw(st.none() | st.frozensets(ids, min_size=1).map(sorted).map(tuple)),
        bad_words=tuple(draw(st.lists(words, max_size=8))),
    )
    sampling = TokenSampling(
        seed=draw(st.integers(0, 2**64 - 1)),
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 5])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.3])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
        logprobs=draw(st.sampled_from([None, 3])),
        adjustments=wanted,
    )
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    logits = (rng.standard_normal((1, VOCAB)) * 3).astype(np.float32)
    small = st.lists(ids, max_size=12)
    return logits, sampling, draw(small), draw(small)


@settings(max_examples=part(100, 1 / 3))
@given(case=cases(), name=st.sampled_from(["cpu", "reference"]))
def test_any_rules_against_the_slow_sampler(
    case: tuple[np.ndarray, TokenSampling, list[int], list[int]], name: str
) -> None:
    logits, sampling, prompt, output = case
    (choice,) = make_sampler(name).sample(
        torch.from_numpy(logits), [ask(sampling, prompt, output, VOCAB)]
    )
    assert sampling.adjustments is not None
    kept = slow_logits(logits[0], sampling.adjustments, prompt, output)
    if not kept:
        assert choice.token is None
        assert choice.error_code == "no_token_left"
        return
    met("a draw of several", sampling.temperature > 0)
    met("penalised", sampling.adjustments.repetition != 1 and {*prompt, *output})
    met("bad words", sampling.adjustments.bad_words)
    weights = slow_weights(kept, sampling)
    (draw,) = reference.uniform([sampling.seed], [0], [len(output)])
    before = sum(weight for token, weight in weights.items() if token < (choice.token or 0))
    total = sum(weights.values())
    assert choice.token in weights
    assert before / total <= draw + EDGE
    assert (before + weights[choice.token]) / total >= draw - EDGE
    if sampling.logprobs is not None:
        true = torch.log_softmax(torch.from_numpy(logits[0]).double(), -1)
        assert choice.logprobs is not None
        assert choice.logprobs.logprob == pytest.approx(float(true[choice.token]), abs=1e-5)
        assert choice.logprobs.top_ids == tuple(true.topk(3).indices.tolist())


@settings(max_examples=part(100, 1 / 3))
@given(case=cases())
def test_both_samplers_choose_the_same_token(
    case: tuple[np.ndarray, TokenSampling, list[int], list[int]],
) -> None:
    logits, sampling, prompt, output = case
    asked = [ask(sampling, prompt, output, VOCAB)]
    first, second = (
        make_sampler(name).sample(torch.from_numpy(logits), asked)[0]
        for name in ("cpu", "reference")
    )
    assert (first.token, first.error) == (second.token, second.error)
    met("a token", first.token is not None)


@given(case=cases())
def test_rules_that_followed_the_output_are_those_that_replayed_it(
    case: tuple[np.ndarray, TokenSampling, list[int], list[int]],
) -> None:
    _, sampling, prompt, output = case
    followed = adjustments_of(sampling, prompt, len(prompt), VOCAB)
    if followed is None:
        return
    met("penalties and an output", followed.penalties is not None and output)
    for at, token in enumerate(output):
        followed.advance(token)
        replayed = adjustments_of(sampling, prompt + output[: at + 1], len(prompt), VOCAB)
        assert replayed is not None
        assert replayed.banned == followed.banned
        if followed.penalties is not None:
            assert replayed.penalties is not None
            assert replayed.penalties.ids.tolist() == followed.penalties.ids.tolist()
            assert replayed.penalties.counts.tolist() == followed.penalties.counts.tolist()


@pytest.mark.parametrize("repetition", [1.0, 1.1])
def test_many_distinct_tokens_are_counted(repetition: float) -> None:
    """More than the arrays begin with room for; without a prompt in them, several times."""
    adjustments = LogitsAdjustments(frequency=0.1, repetition=repetition)
    sampling = TokenSampling(seed=1, adjustments=adjustments)
    tokens = np.random.default_rng(1).integers(0, 700, 3000).tolist()
    rules = adjustments_of(sampling, tokens[:500], 500, 700)
    assert rules is not None
    for token in tokens[500:]:
        rules.advance(token)
    assert rules.penalties is not None
    found = zip(rules.penalties.ids.tolist(), rules.penalties.counts.tolist(), strict=True)
    prompt = tokens[:500] if repetition != 1 else []
    assert dict(found) == {**dict.fromkeys(prompt, 0), **Counter(tokens[500:])}


DISTRIBUTIONS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 12},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", DISTRIBUTIONS, ids=str)
def test_distribution_with_penalties(sampler: Sampler, fields: dict[str, Any]) -> None:
    """Chi-square of 6,000 draws over the tokens that are expected 5 times or more."""
    count, vocab, prompt, output = 6000, 40, [1, 2, 3, 3], [5, 5, 5, 6, 7]
    wanted = LogitsAdjustments(
        presence=0.4,
        frequency=0.3,
        repetition=1.3,
        bias={2: 1.0, 9: -2.0, 30: 1.5},
        allowed=tuple(range(1, 38)),
        bad_words=((11,), (7, 12), (6, 13)),
    )
    sampling = TokenSampling(seed=0, adjustments=wanted, **fields)
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(9)) * 1.5
    weights = slow_weights(slow_logits(logits.numpy(), wanted, prompt, output), sampling)
    probabilities = np.array([weights.get(token, 0.0) for token in range(vocab)])
    probabilities /= probabilities.sum()
    rules = adjustments_of(sampling, prompt + output, len(prompt), vocab)
    asks = [SampleRequest(sampling, 0, at, None, rules) for at in range(count)]
    chosen = sampler.sample(logits.expand(count, vocab).contiguous(), asks)
    seen = np.bincount([choice.token or 0 for choice in chosen], minlength=vocab)
    check_distribution(seen, probabilities)


def test_greedy_obeys_them_all(sampler: Sampler) -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0, 3.0, 2.0, 1.0]])

    def greedy(output: list[int], **fields: Any) -> int | None:
        sampling = TokenSampling(seed=1, temperature=0.0, adjustments=LogitsAdjustments(**fields))
        return sampler.sample(logits, [ask(sampling, [2], output, 6)])[0].token

    assert greedy([], allowed=(0, 4, 5)) == 4
    assert greedy([], bias={5: 4.5}) == 5
    assert greedy([], bad_words=((1,), (2, 3))) == 2
    assert greedy([2], bad_words=((1,), (2,), (2, 3))) == 4
    assert greedy([1], presence=1.5) == 2
    assert greedy([1, 1, 1], frequency=0.5) == 2
    assert greedy([1], repetition=2.0) == 3, "the prompt's token is penalised too"
    assert greedy([1], frequency=2.0) == 2, "the prompt's isn't counted"


def test_a_penalty_makes_unlikely_tokens_less_likely(sampler: Sampler) -> None:
    """What is below 0 is multiplied: divided, it would come nearer to 0."""
    logits = torch.tensor([[-1.0, -1.5, -3.0]])

    def greedy(seen: int, repetition: float) -> int | None:
        adjustments = LogitsAdjustments(repetition=repetition)
        sampling = TokenSampling(seed=1, temperature=0.0, adjustments=adjustments)
        return sampler.sample(logits, [ask(sampling, [seen], [], 3)])[0].token

    assert greedy(0, 2.0) == 1
    assert greedy(1, 2.0) == 0
    assert greedy(2, 0.2) == 2


def test_a_grammar_min_tokens_and_rules_cut_together(sampler: Sampler) -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 6.0, 5.0]])
    grammar = np.array([True, True, False, True, True])
    wanted = LogitsAdjustments(allowed=(0, 1, 2, 3), bad_words=((1,),))
    sampling = TokenSampling(
        seed=1, temperature=0.0, min_tokens=1, held_back=(0,), adjustments=wanted
    )

    def choice(mask: np.ndarray, emitted: int) -> Any:
        rules = adjustments_of(sampling, [2] + [4] * emitted, 1, 5)
        return sampler.sample(logits, [SampleRequest(sampling, 0, emitted, mask, rules)])[0]

    assert choice(grammar, 0).token == 3
    assert choice(grammar, 1).token == 0
    only_the_end = np.array([True, True, True, False, True]) & ~np.array([False] * 2 + [True] * 3)
    assert choice(only_the_end, 0).token == 0, "nothing else is allowed: min_tokens gives way"
    none = choice(np.array([False, True, False, False, True]), 0)
    assert none.token is None
    assert none.error_code == "no_token_left"


@given(
    allowed=st.none() | st.frozensets(ids, min_size=1).map(sorted).map(tuple),
    bad_words=st.lists(words, max_size=8).map(tuple),
    early=st.just(tuple(range(VOCAB))) | st.frozensets(ids).map(sorted).map(tuple),
    grammar=st.none() | st.frozensets(ids, min_size=1),
    output=st.lists(ids, max_size=5),
)
def test_what_is_held_back(
    allowed: tuple[int, ...] | None,
    bad_words: tuple[tuple[int, ...], ...],
    early: tuple[int, ...],
    grammar: frozenset[int] | None,
    output: list[int],
) -> None:
    """What is neither allowed nor fit; and the ends too, unless nothing else is left of a list."""
    sampling = TokenSampling(
        seed=1,
        min_tokens=10,
        held_back=early,
        adjustments=LogitsAdjustments(allowed=allowed, bad_words=bad_words),
    )
    mask = None if grammar is None else np.isin(np.arange(VOCAB), sorted(grammar))
    rules = adjustments_of(sampling, [1, *output], 1, VOCAB)
    held = SampleRequest(sampling, 0, len(output), mask, rules).held_back()
    fit = {
        token
        for token in range(VOCAB)
        if (allowed is None or token in allowed)
        and (grammar is None or token in grammar)
        and not any(ends_word(word, output, token) for word in bad_words)
    }
    listed = allowed is not None or grammar is not None
    kept = fit - set(early) or (fit if listed else set())
    met("ends are held back", set(early) & fit and kept != fit)
    met("nothing but ends is left", listed and fit and not fit - set(early))
    assert set(range(VOCAB)) - {int(token) for token in held} == kept


def test_scores_are_those_of_sampled_tokens(sampler: Sampler) -> None:
    """What is said of a prompt's token is, to the bit, what is said of an emitted one."""
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(2)) * 3
    asked = [SampleRequest(TokenSampling(seed=seed, logprobs=4), 0, 0) for seed in range(3)]
    chosen = sampler.sample(logits, asked)
    tokens = [choice.token or 0 for choice in chosen]
    assert sampler.score(logits, tokens, 4) == [choice.logprobs for choice in chosen]
    assert sampler.score(logits[:0], [], 4) == []
    logits[1, 7] = float("nan")
    assert sampler.score(logits, tokens, 4) is None
