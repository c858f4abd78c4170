"""Rows of drafts that are sampled together give what each gives by itself, in few calls."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from penstock.protocol.common import LogitsAdjustments, SpeechRules, TokenSampling
from penstock_worker.device.queue import HostQueue
from penstock_worker.sampler import (
    CPUSampler,
    ReferenceSampler,
    SampledToken,
    Sampler,
    SampleRequest,
    adjustments_of,
)
from penstock_worker.sampler.interface import HostSampler, HostSamples
from penstock_worker.steps.drafted import LogitsRows
from penstock_worker.steps.launch import DraftedTokens
from penstock_worker.steps.sampled_ahead import MOST, RowsAhead

VOCAB, PROMPT, ROWS = 300, [5, 6, 7, 6], 100
PENALTIES = LogitsAdjustments(0.6, 0.4, 1.3, bias={7: 1.5}, bad_words=((9,), (11, 12)))
SPEECH = LogitsAdjustments(frequency=0.2, speech=SpeechRules(suppressed_first=(8,)))
KINDS = {
    "drawn": TokenSampling(9, temperature=1.2, top_p=0.95, top_k=40),
    "penalties": TokenSampling(4, temperature=0.9, logprobs=2, adjustments=PENALTIES),
    "held back": TokenSampling(5, temperature=1.0, min_tokens=9, held_back=(3, 4, 5), logprobs=0),
    "transcript": TokenSampling(6, temperature=0.8, adjustments=SPEECH),
}


class Counted(HostSampler):
    """calls: the rows of each."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__(sampler)
        self.calls: list[int] = []

    def launch(
        self, logits: Tensor, requests: list[SampleRequest], slots: list[int]
    ) -> HostSamples:
        self.calls.append(len(requests))
        return super().launch(logits, requests, slots)


class Following:
    """A sequence that follows its own samples, a row after another."""

    def __init__(self, sampling: TokenSampling) -> None:
        self._sampling = sampling
        self._adjustments = adjustments_of(sampling, PROMPT, len(PROMPT), VOCAB)
        self._emitted = 0

    def request(self) -> SampleRequest:
        return SampleRequest(self._sampling, 1, self._emitted, None, self._adjustments)

    def take(self, token: int) -> None:
        self._emitted += 1
        if self._adjustments is not None:
            self._adjustments.advance(token)


def alone(sampler: Sampler, logits: Tensor, sampling: TokenSampling) -> list[SampledToken]:
    found, sequence = [], Following(sampling)
    for row in range(len(logits)):
        found += sampler.sample(logits[row : row + 1], [sequence.request()])
        sequence.take(said(found[-1]))
    return found


def said(sampled: SampledToken) -> int:
    assert sampled.token is not None
    return sampled.token


@pytest.mark.parametrize("sampler", [CPUSampler(2), ReferenceSampler()], ids=["cpu", "reference"])
@pytest.mark.parametrize("wrong", [None, 0, 1, 6, 50])
def test_it_is_what_each_row_gives_by_itself(sampler: Sampler, wrong: int | None) -> None:
    """wrong: the draft that isn't what is sampled."""
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    expected = [alone(sampler, logits, sampling) for sampling in KINDS.values()]
    drafted = {}
    for slot, found in enumerate(expected):
        ids = [said(each) for each in found]
        if wrong is not None:
            ids[wrong] = (ids[wrong] + 1) % VOCAB
        # The first id was sampled before; its row is the first here.
        drafted[slot] = DraftedTokens([random.Random(1).randrange(VOCAB), *ids[:-1]], slot * ROWS)
    counted = Counted(sampler)
    rows = RowsAhead(LogitsRows(logits.repeat(len(KINDS), 1), counted, HostQueue()), drafted)
    sequences = [Following(sampling) for sampling in KINDS.values()]
    for at in range(ROWS if wrong is None else wrong + 1):
        found = rows(
            [slot * ROWS + at for slot in drafted],
            [sequence.request() for sequence in sequences],
            list(drafted),
        )
        assert found == [each[at] for each in expected]
        for sequence, sampled in zip(sequences, found, strict=True):
            sequence.take(said(sampled))
    asked = len(KINDS) * (at + 1)
    assert sum(counted.calls) <= 2 * asked, "no more in vain than were right"
    if wrong is None:
        together = max(counted.calls)
        assert together == (len(KINDS) - 1) * MOST + 1, "a transcript's rows come one by one"
