"""What the measurement of quality makes of log-probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from loadtest.quality import CONTINUED, Run, Scores, _greedy, compared, perplexity


def test_two_runs_by_hand() -> None:
    """One token of two has half the probability, and another one is likeliest at one place."""
    true = Scores(np.log([0.5, 0.25]), np.array([1, 2]))
    ours = Scores(np.log([0.25, 0.25]), np.array([1, 3]))
    found = compared(ours, true)
    assert found["more"] == pytest.approx(math.sqrt(2) - 1)
    assert found["error"] == pytest.approx(math.log(2) / 2)
    assert found["nats"] == pytest.approx(math.log(2))
    assert found["same"] == 0.5


def test_perplexity_of_a_fair_coin() -> None:
    found = perplexity(np.full(9, math.log(0.5)))
    assert found == {"tokens": 9, "perplexity": pytest.approx(2), "error": pytest.approx(0)}


class Counting(Run):
    """Goes on with the next number, but for one after which it likes the first best."""

    def __init__(self, *, odd: int | None = None) -> None:
        self._odd = odd

    def logits(self, tokens: list[int], start: int = 0) -> Tensor:
        likeliest = torch.tensor([0 if token == self._odd else token + 1 for token in tokens])
        return 9.0 * torch.nn.functional.one_hot(likeliest, 64)


def test_greedy_tokens_that_differ() -> None:
    truth, sequences = Counting(), []
    for prompt in ([3], [5, 6]):
        sequences.append(truth.continued(prompt))
    assert sequences == [list(range(3, 4 + CONTINUED)), list(range(5, 7 + CONTINUED))]
    # The first sequence meets it, and the second one doesn't.
    true = [(tokens, truth.scores(tokens)) for tokens in sequences]
    found = _greedy(Counting(odd=3), true)
    assert (found["greedy"], found["differing"]) == (2 * CONTINUED, 1)
    assert found["nats"] == [pytest.approx(9), 0]
