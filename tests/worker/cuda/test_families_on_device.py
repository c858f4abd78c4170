"""Families of models by the CUDA kernels, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.model_config import ModelConfig
from penstock_kernels.triton.tiles import attention_choice
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.device.memory import memory_of
from penstock_worker.forward.queued import TritonForward
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.layers.ops import Ops
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.dummy import DummyWeights
from tests.worker.cuda.small_models import BLOCK, DEVICE, batch, prompt
from tests.worker.models.family_cases import ON_DEVICE, read

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

BLOCKS, POSITIONS = 128 // BLOCK, 128
HOST = torch.device("cpu")


def model(config: ModelConfig, device: torch.device, ops: Ops) -> DecoderModel:
    return DecoderModel(config, DummyWeights(torch.float32, device), POSITIONS, ops)


def on_device(config: ModelConfig) -> TritonForward:
    shape = CacheShape.of(config, BLOCK, torch.float32)
    attention = TritonAttention(shape, BLOCKS, DEVICE, attention_choice(config.head_dim))
    own = model(config, DEVICE, TritonOps(DEVICE, torch.float32, batch_invariant=True))
    return TritonForward(own, attention, DEVICE, slots=2, memory=memory_of(DEVICE))


def on_host(config: ModelConfig) -> ReferenceForward:
    shape = CacheShape.of(config, BLOCK, torch.float32)
    return ReferenceForward(model(config, HOST, REFERENCE), ReferenceAttention(shape, BLOCKS))


@pytest.mark.parametrize("case", ON_DEVICE)
def test_logits_are_the_references(case: str) -> None:
    """A prompt in two chunks, beside another one, and a decode of both."""
    config = read(case)
    mine, other = prompt(config, 50, 1), prompt(config, 30, 2)
    table, beside = list(range(0, BLOCKS, 2)), list(range(1, BLOCKS, 2))
    steps = [
        batch((mine[:40], table, 0), (other, beside, 0)),
        batch((mine[40:], table, 40), ([7], beside, 30)),
        batch(([9], table, 50), ([8], beside, 31)),
    ]
    with torch.inference_mode():
        ours, wanted = on_device(config), on_host(config)
        for step in steps:
            rows = np.arange(len(step.tokens))
            found, true = ours.logits(step, rows).cpu(), wanted.logits(step, rows)
            assert (found - true).abs().max() < 1e-4 * true.abs().max()
