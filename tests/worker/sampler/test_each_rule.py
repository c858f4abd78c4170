"""Each rule of sampling by itself, where it leaves one token of several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock.protocol.common import TokenSampling
from penstock_worker.sampler import Sampler, SampleRequest
from tests.worker.sampler.test_adjustments import make_sampler

LOGITS = [1.0, 1.5, 0.5, 0.0]
SEEDS = range(60)


@pytest.fixture(params=["cpu", "reference"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return make_sampler(request.param)


def tokens(sampler: Sampler, requests: list[SampleRequest]) -> list[int | None]:
    logits = torch.tensor([LOGITS] * len(requests))
    return [each.token for each in sampler.sample(logits, requests)]


def drawn(sampler: Sampler, **fields: Any) -> set[int | None]:
    """What so many seeds draw."""
    return {
        *tokens(sampler, [SampleRequest(TokenSampling(seed, **fields), 0, 0) for seed in SEEDS])
    }


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.3}, {1}),
        ({"top_p": 0.6}, {0, 1}),
        ({"min_p": 1.0}, {1}),
        ({"min_p": 0.5}, {0, 1}),
        ({"top_k": 2, "top_p": 0.6}, {1}),  # Of two, the likelier has 0.62; of all, it has 0.46.
        ({"top_p": 0.6, "min_p": 0.8}, {1}),
        ({"top_p": 0.3, "min_p": 0.5}, {1}),
        ({"temperature": 0.0}, {1}),
        ({"temperature": 0.05}, {1}),
        ({"min_tokens": 1, "held_back": (0, 1, 2)}, {3}),
        ({"temperature": 0.0, "min_tokens": 1, "held_back": (1,)}, {0}),
    ],
    ids=str,
)
def test_what_a_rule_leaves(sampler: Sampler, rule: dict[str, Any], left: set[int]) -> None:
    assert drawn(sampler, **rule) == left


def test_a_draw_is_the_seeds_the_sequences_and_the_tokens_own(sampler: Sampler) -> None:
    """Else n choices would be one, and a text one token."""
    same = TokenSampling(7)
    assert len({*tokens(sampler, [SampleRequest(same, index, 0) for index in SEEDS])}) > 1
    assert len({*tokens(sampler, [SampleRequest(same, 0, emitted) for emitted in SEEDS])}) > 1
    assert len({*tokens(sampler, [SampleRequest(same, 0, 0) for _ in SEEDS])}) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_leaves_what_it_allows(sampler: Sampler, temperature: float) -> None:
    allowed = np.array([False, False, True, False])
    requests = [
        SampleRequest(TokenSampling(seed, temperature=temperature), 0, 0, allowed) for seed in SEEDS
    ]
    assert {*tokens(sampler, requests)} == {2}
