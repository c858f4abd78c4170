"""A whole model by the CUDA kernels' Ops, between reference attention and reference weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.layers.parts import DecoderOps
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import open_weights
from tests.worker.checkpoints import TINY, tiny_files

pytestmark = pytest.mark.timeout(300)


def logits(ops: DecoderOps, folder: Path) -> torch.Tensor:
    """Logits of a prompt of 9 tokens, and of one token more."""
    weights = open_weights(tiny_files(folder), TINY, torch.float32)
    model = DecoderModel(TINY, weights, 64, ops)
    heads = (TINY.num_layers, TINY.num_heads, TINY.num_kv_heads, TINY.head_dim)
    forward = ReferenceForward(model, ReferenceAttention(CacheShape(*heads, 16, torch.float32), 4))
    parts = [
        forward.logits(
            Batch(tokens, [np.array([2])], np.array([start]), np.array([len(tokens)])),
            np.arange(len(tokens)),
        )
        for start, tokens in ((0, np.arange(40, 49)), (9, np.array([7])))
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_model_is_the_reference(
    batch_invariant: bool, tmp_path: Path, device: torch.device
) -> None:
    if device.type != "cpu":
        pytest.skip("the reference's attention is on the CPU")
    ops = TritonOps(device, torch.float32, batch_invariant=batch_invariant)
    with torch.inference_mode():
        ours, wanted = logits(ops, tmp_path), logits(REFERENCE, tmp_path)
    assert (ours - wanted).abs().max() < 1e-4 * wanted.abs().max()
