"""Log-probabilities of listed ids: the bits that they have among the likeliest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock_worker.sampler.adjustments import adjustments_of
from penstock_worker.sampler.cpu import CPUSampler
from penstock_worker.sampler.interface import SampledToken, SampleRequest
from penstock_worker.sampler.reference import ReferenceSampler

VOCAB = 3001


@pytest.fixture(params=["cpu", "reference"])
def sampler(request: pytest.FixtureRequest) -> CPUSampler | ReferenceSampler:
    return CPUSampler(threads=2) if request.param == "cpu" else ReferenceSampler()


def asked(sampling: TokenSampling) -> SampleRequest:
    return SampleRequest(sampling, 0, 0, None, adjustments_of(sampling, [1], 1, VOCAB))


def told(
    sampler: CPUSampler | ReferenceSampler, logits: np.ndarray, *samplings: TokenSampling
) -> list[SampledToken]:
    return sampler.sample(torch.from_numpy(logits), [asked(each) for each in samplings])


def test_an_id_has_the_bits_that_it_has_among_the_likeliest(
    sampler: CPUSampler | ReferenceSampler,
) -> None:
    """Whatever else the request changes, and in any company: these are of the raw distribution."""
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((4, VOCAB)) * 4).astype(np.float32)
    ids = (7, 2999, 0, 1500, 7)
    for temperature in (0.0, 1.0):
        for changed in (None, LogitsAdjustments(presence=1.0, bias={7: 9.0}, allowed=(3, 7, 9))):
            plain = TokenSampling(9, temperature=temperature, adjustments=changed, logprobs=VOCAB)
            listed = TokenSampling(
                9, temperature=temperature, adjustments=changed, logprobs=0, logprob_ids=ids
            )
            quiet = TokenSampling(9, temperature=temperature)
            whole = told(sampler, logits, plain, plain, plain, plain)
            found = told(sampler, logits, listed, quiet, listed, plain)
            for row in (0, 2):
                token, all_of_it = whole[row].token, whole[row].logprobs
                assert all_of_it is not None
                by_id = dict(zip(all_of_it.top_ids, all_of_it.top_logprobs, strict=True))
                shown = found[row].logprobs
                assert found[row].token == token
                assert shown is not None
                assert shown.logprob == all_of_it.logprob
                assert shown.top_ids == tuple(dict.fromkeys((token, *ids)))
                assert shown.top_logprobs == tuple(by_id[each] for each in shown.top_ids)
            assert found[1].logprobs is None
            assert found[3] == whole[3]


def test_the_token_itself_stands_once(sampler: CPUSampler | ReferenceSampler) -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 40] = 5.0
    sampling = TokenSampling(1, temperature=0.0, logprobs=0, logprob_ids=(3, 40))
    (found,) = told(sampler, logits, sampling)
    assert found.logprobs is not None
    assert found.logprobs.top_ids == (40, 3)


def test_logits_that_are_no_numbers_are_an_error(sampler: CPUSampler | ReferenceSampler) -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 5] = np.nan
    (found,) = told(sampler, logits, TokenSampling(1, logprobs=0, logprob_ids=(3,)))
    assert found.token is None
    assert found.error is not None
