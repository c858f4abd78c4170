"""The rules of transcripts, beside transformers' logits processors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from penstock.protocol.common import LogitsAdjustments, SpeechRules, TimestampRules, TokenSampling
from penstock_worker.sampler import CPUSampler, ReferenceSampler, SampleRequest, adjustments_of
from penstock_worker.sampler.interface import HostSampler

VOCAB, END, NONE, FIRST = 90, 40, 59, 60
"""Text, the end, other special tokens, no_timestamps, and thirty timestamps."""
PROMPT = [50, 51, 52]


def rules(max_initial: int | None) -> SpeechRules:
    return SpeechRules((3, 5, 45), (2, END), TimestampRules(FIRST, END, NONE, max_initial))


def kept_by_transformers(
    wanted: SpeechRules,
    output: list[int],
    logits: np.ndarray,
    bias: dict[int, float] | None = None,
    repetition: float = 1.0,
) -> dict[int, float]:
    """Ids that its processors leave, and their logits. In the order of its `generate`."""
    times = wanted.timestamps
    assert times is not None
    config = GenerationConfig(no_timestamps_token_id=times.none, eos_token_id=times.text_end)
    config.max_initial_timestamp_index = times.max_initial
    begin = len(PROMPT)
    ids = torch.tensor([PROMPT + output])
    scores = torch.from_numpy(logits[None])
    biased = {(token,): value for token, value in (bias or {NONE: 0.0}).items()}
    for processor in (
        SequenceBiasLogitsProcessor(biased),
        RepetitionPenaltyLogitsProcessor(repetition),
        SuppressTokensAtBeginLogitsProcessor(list(wanted.suppressed_first), begin),
        SuppressTokensLogitsProcessor(list(wanted.suppressed)),
        WhisperTimeStampLogitsProcessor(config, begin),
    ):
        scores = processor(ids, scores)
    row = scores[0].tolist()
    return {token: value for token, value in enumerate(row) if value != -np.inf}


def ask(
    wanted: SpeechRules,
    output: list[int],
    temperature: float,
    seed: int,
    bias: dict[int, float] | None = None,
    repetition: float = 1.0,
) -> SampleRequest:
    adjustments = LogitsAdjustments(bias=bias or {}, repetition=repetition, speech=wanted)
    sampling = TokenSampling(seed, temperature, logprobs=0, adjustments=adjustments)
    made = adjustments_of(sampling, PROMPT + output, len(PROMPT), VOCAB)
    return SampleRequest(sampling, 0, len(output), None, made)


def outputs(rng: np.random.Generator, count: int) -> list[np.ndarray]:
    """Logits of some steps, in which now text and now timestamps prevail."""
    found = []
    for _ in range(count):
        logits = rng.normal(0, 2, VOCAB)
        logits[FIRST:] += rng.choice([-4, -1, 0, 3])
        logits[END] += rng.choice([-5, 1])
        found.append(logits.astype(np.float32))
    return found


@pytest.mark.parametrize("max_initial", [None, 5])
@pytest.mark.parametrize("sampler", [CPUSampler(1), ReferenceSampler()], ids=["cpu", "reference"])
def test_a_greedy_transcript_is_that_of_transformers(
    sampler: CPUSampler | ReferenceSampler, max_initial: int | None
) -> None:
    rng = np.random.default_rng(7)
    wanted = rules(max_initial)
    seen = set()
    for _ in range(12):
        output: list[int] = []
        request = ask(wanted, [], 0.0, 1)
        for logits in outputs(rng, 14):
            kept = kept_by_transformers(wanted, output, logits)
            request = SampleRequest(request.sampling, 0, len(output), None, request.adjustments)
            (choice,) = sampler.sample(torch.from_numpy(logits[None]), [request])
            assert choice.token == max(kept, key=lambda token: (kept[token], -token)), output
            output.append(choice.token)
            # A sequence that is admitted again is in the same state.
            again = ask(wanted, output, 0.0, 1).adjustments
            assert request.adjustments is not None
            assert again is not None
            request.adjustments.advance(choice.token)
            assert np.array_equal(request.adjustments.banned_ids, again.banned_ids)
            seen.add("end" if choice.token == END else "time" if choice.token >= FIRST else "text")
    assert seen == {"end", "time", "text"}


@pytest.mark.parametrize("sampler", [CPUSampler(1), ReferenceSampler()], ids=["cpu", "reference"])
@pytest.mark.parametrize(
    ("bias", "repetition"),
    [({7: 6.0, FIRST + 20: -5.0, END: 2.0}, 1.0), ({}, 3.0), ({8: 3.0}, 2.0)],
)
def test_times_are_weighed_after_biases_and_penalties(
    sampler: CPUSampler | ReferenceSampler, bias: dict[int, float], repetition: float
) -> None:
    rng = np.random.default_rng(5)
    wanted, flipped = rules(None), 0
    text = [6, 7, 9, 11, 13]
    for logits in outputs(rng, 60):
        output = [FIRST, *rng.choice(text, 3).tolist()]
        logits[text] += 3
        kept = kept_by_transformers(wanted, output, logits, bias, repetition)
        asked = ask(wanted, output, 0.0, 1, bias, repetition)
        (choice,) = sampler.sample(torch.from_numpy(logits[None]), [asked])
        assert choice.token == max(kept, key=lambda token: (kept[token], -token))
        flipped += kept.keys() != kept_by_transformers(wanted, output, logits).keys()
    assert flipped


def test_draws_keep_the_rules_beside_rows_without_any() -> None:
    rng = np.random.default_rng(3)
    wanted = rules(None)
    sampler = HostSampler(CPUSampler(1))
    for seed, logits in enumerate(outputs(rng, 40)):
        output = [[], [FIRST], [FIRST, 4], [FIRST, 4, FIRST + 9], [FIRST, 4, 69, 69]][seed % 5]
        kept = kept_by_transformers(wanted, output, logits)
        free = SampleRequest(TokenSampling(seed, 1.5), 0, 0)
        asked = [free, ask(wanted, output, 1.5, seed), free]
        rows = torch.from_numpy(np.stack([logits] * 3))
        together = sampler.launch(rows, asked, [0, 1, 2]).sampled()
        assert together[1].token in kept
        alone = sampler.launch(rows[:1], asked[1:2], [0]).sampled()
        assert alone == together[1:2]


def test_without_timestamps_only_lists_hold() -> None:
    wanted = SpeechRules((3, 5), (2, END))
    first, later = ask(wanted, [], 0.0, 1).adjustments, ask(wanted, [9], 0.0, 1).adjustments
    assert first is not None
    assert later is not None
    assert first.banned_ids.tolist() == [2, 3, 5, END]
    assert later.banned_ids.tolist() == [3, 5]
    first.advance(9)
    assert first.banned_ids.tolist() == [3, 5]
    assert first.forbids(3)
    assert not first.forbids(2)
