"""Rows of one step, each with lists of its own: what a row is sampled is what it is alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock_worker.sampler import SampledToken, Sampler
from tests.met import met
from tests.worker.sampler.test_adjustments import VOCAB, ask, cases, make_sampler

Row = tuple[np.ndarray, TokenSampling, list[int], list[int]]


def sampled(sampler: Sampler, rows: list[Row]) -> list[SampledToken]:
    logits = torch.from_numpy(np.concatenate([logits for logits, *_ in rows]))
    return sampler.sample(logits, [ask(*row[1:], VOCAB) for row in rows])


def num_biased(row: Row) -> int:
    adjustments = row[1].adjustments
    return 0 if adjustments is None else len(adjustments.bias)


def num_seen(row: Row) -> int:
    adjustments = row[1].adjustments
    asked = adjustments is not None and (
        adjustments.presence or adjustments.frequency or adjustments.repetition != 1
    )
    return len({*row[2], *row[3]}) if asked else 0


@given(rows=st.lists(cases(), min_size=2, max_size=5), name=st.sampled_from(["cpu", "reference"]))
def test_any_rows_together_are_sampled_as_each_alone(rows: list[Row], name: str) -> None:
    met("rows with different numbers of penalised ids", len({*map(num_seen, rows)} - {0}) > 1)
    met("rows with different numbers of biased ids", len({*map(num_biased, rows)} - {0}) > 1)
    sampler = make_sampler(name)
    alone = [sampled(sampler, [row])[0] for row in rows]
    assert sampled(sampler, rows) == alone


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_row_is_penalised_for_its_own_ids(name: str) -> None:
    """The lists of the first rows are of 4, 1 and 2 ids for biases and penalties in turn, so that
    the last row's begin where no count of rows or of other lists would say."""
    sampler = make_sampler(name)
    logits = torch.zeros(4, VOCAB)
    logits[:, 20], logits[:, 21] = 3.0, 2.0
    rows = [
        (LogitsAdjustments(presence=1.0, bias={1: 0.1}), [5, 6, 7], [8]),
        (LogitsAdjustments(frequency=1.0, bias={1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1}), [], [9]),
        (LogitsAdjustments(repetition=1.5, bias={21: 2.0}), [10, 11], []),
        (LogitsAdjustments(presence=2.0), [], [20]),
    ]
    greedy = [
        (TokenSampling(0, temperature=0.0, adjustments=adjustments), prompt, output)
        for adjustments, prompt, output in rows
    ]
    chosen = sampler.sample(logits, [ask(*row, VOCAB) for row in greedy])
    assert [each.token for each in chosen] == [20, 20, 21, 21]
