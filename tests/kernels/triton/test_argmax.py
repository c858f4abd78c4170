"""The argmax token of each row, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock_kernels.triton.sampling.argmax import argmax

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("vocab", [1, 50, 2049, 8193, 20000])
def test_the_first_of_the_largest(vocab: int, device: torch.device) -> None:
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(vocab)).round()
    logits[1] = -3.0
    logits[2, -1] = 100.0
    for holes in (False, True):
        ours = argmax(logits.to(device), holes=holes).tolist()
        assert ours == np.argmax(logits.numpy(), -1).tolist()
        assert argmax(logits[:1].to(device), holes=holes).tolist() == ours[:1]


@pytest.mark.parametrize("place", [0, 8191, 8192, 8999])
def test_what_is_not_finite(place: int, device: torch.device) -> None:
    logits = torch.zeros(5, 9000)
    for row, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        logits[row, place] = value
    logits[4] = float("-inf")
    assert argmax(logits.to(device)).tolist() == [-1, -1, -1, 0, -1]
    after_hole = 1 if place == 0 else 0
    ours = argmax(logits.to(device), holes=True).tolist()
    assert ours == [-1, -1, after_hole, 0, -1]


def test_no_rows(device: torch.device) -> None:
    assert argmax(torch.zeros(0, 7, device=device)).tolist() == []
