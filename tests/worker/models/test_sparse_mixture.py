"""SparseMixer's choices and weights are transformers', on rows that random models don't have."""

from __future__ import annotations

import pytest
import torch
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from penstock_worker.layers.experts import sparse_mixture


@pytest.mark.parametrize("jitter", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("shift", [-5.0, 0.0, 5.0])
def test_a_sparse_mixture_equals_transformers(jitter: float, shift: float) -> None:
    products = torch.randn(200, 7, generator=torch.Generator().manual_seed(3)) + shift
    products[0] = 0.0  # Distances are no numbers.
    products[1] = torch.tensor([0.0, 0.0, -1.0, -1.0, 0.0, -2.0, -3.0])
    products[2] = shift  # The first of equal ones is chosen.
    weights, chosen = sparsemixer(products, jitter_eps=jitter, training=False)
    true = torch.zeros_like(products).scatter_(1, chosen, weights)
    found = sparse_mixture(products, 2, 2 * jitter)
    assert torch.equal(found > 0, true > 0)
    assert torch.allclose(found, true, rtol=1e-6, atol=0)
