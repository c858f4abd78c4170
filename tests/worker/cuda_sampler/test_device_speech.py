"""The rules of transcripts on the device, beside the reference sampler."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.protocol.common import TokenSampling
from penstock_worker.sampler import ReferenceSampler, SampleRequest
from penstock_worker.sampler.device import DeviceSampler
from tests.worker.sampler.test_speech import FIRST, VOCAB, ask, outputs, rules

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_with_rules_beside_rows_without(temperature: float, device: torch.device) -> None:
    rng = np.random.default_rng(11)
    states = [[], [FIRST], [FIRST, 4], [FIRST, 4, FIRST + 9], [FIRST, 4, FIRST + 9, FIRST + 9]]
    asked = [ask(rules(5), state, temperature, seed) for seed, state in enumerate(states)]
    for repetition in (0.5, 1.0, 3.0):
        bias = {7: 4.0, FIRST + 20: -5.0} if repetition > 0.5 else {}
        output = [FIRST, 4, 7, 9]
        asked.append(ask(rules(None), output, temperature, len(asked), bias, repetition))
    asked.append(SampleRequest(TokenSampling(6, temperature, logprobs=0), 0, 0))
    logits = torch.from_numpy(np.stack(outputs(rng, len(asked))))
    device_sampler = DeviceSampler(device, VOCAB, len(asked))
    assert all(device_sampler.needs_host(each) for each in asked[:-1])
    ours = device_sampler.launch(logits.to(device), asked, list(range(len(asked)))).sampled()
    theirs = ReferenceSampler().sample(logits, asked)
    assert [each.token for each in ours] == [each.token for each in theirs]
