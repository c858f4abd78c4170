"""Every mechanism of a layer gives a row the same bits in any company and in any chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.formats.fields import Fields
from penstock.model_config import ModelConfig
from penstock.prepare.hub_config import read_config
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.dummy import DummyWeights
from tests.worker.models.family_cases import CASES, SIZES, config_class

BLOCK, POSITIONS = 16, 256
TOKENS = np.random.default_rng(4).integers(0, SIZES["vocab_size"], 100)
COMPANY = np.random.default_rng(5).integers(0, SIZES["vocab_size"], 70)


def read(case: str) -> ModelConfig:
    family, settings = CASES[case]
    theirs = config_class(family)(**(SIZES | settings), architectures=[f"{family}ForCausalLM"])
    return read_config(Fields(theirs.to_dict(), case))


def forward(config: ModelConfig, dtype: torch.dtype) -> ReferenceForward:
    model = DecoderModel(config, DummyWeights(dtype, torch.device("cpu")), POSITIONS)
    return ReferenceForward(model, ReferenceAttention(CacheShape.of(config, BLOCK, dtype), 32))


def alone(of: ReferenceForward) -> torch.Tensor:
    table = np.arange(7)
    batch = Batch(TOKENS, [table], np.array([0]), np.array([len(TOKENS)]))
    return of.logits(batch, np.arange(len(TOKENS)))


def in_chunks_and_company(of: ReferenceForward) -> torch.Tensor:
    """In chunks of 1, 15, 50, 33 and 1 tokens, over scattered blocks, beside another sequence."""
    mine, other = np.arange(25, 18, -1), np.array([3, 11, 4, 9, 2])
    found, start, beside = [], 0, 0
    for count, more in ((1, 7), (15, 1), (50, 60), (33, 1), (1, 1)):
        batch = Batch(
            np.concatenate((COMPANY[beside : beside + more], TOKENS[start : start + count])),
            [other, mine],
            np.array([beside, start]),
            np.array([more, count]),
        )
        found.append(of.logits(batch, np.arange(more, more + count)))
        start, beside = start + count, beside + more
    return torch.cat(found)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES)
def test_rows_depend_on_their_sequence_alone(case: str) -> None:
    config = read(case)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.inference_mode():
            one, other = (
                alone(forward(config, dtype)),
                in_chunks_and_company(forward(config, dtype)),
            )
        assert bool(one.isfinite().all())
        assert one.std() > 0
        assert torch.equal(one, other)
