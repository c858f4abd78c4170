"""Times of tokens: the same as transformers' functions make of the same attention."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import ModelOutput
from transformers.models.whisper.generation_whisper import (
    WhisperGenerationMixin,
    _dynamic_time_warping,
)

from penstock_worker.alignment.interface import Crossing
from penstock_worker.alignment.slots import first_columns, token_rows


def theirs_of(costs: np.ndarray) -> np.ndarray:
    rows, columns = _dynamic_time_warping(costs)
    return columns[np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 1), (5, 5), (12, 90), (40, 31)], ids=str)
@pytest.mark.parametrize("steps", [0, 3], ids=["distinct", "ties"])
def test_the_way_is_that_of_transformers(shape: tuple[int, int], steps: int) -> None:
    rng = np.random.default_rng(shape[0] + steps)
    for _ in range(10):
        costs = rng.integers(-steps, steps + 1, shape) if steps else rng.normal(0, 1, shape)
        found = first_columns(costs.astype(np.float64))
        assert found.tolist() == theirs_of(costs.astype(np.float64)).tolist()


def crossing(tokens: int, rows: int, heads: int, dim: int = 16) -> Crossing:
    random = torch.Generator().manual_seed(tokens + rows)
    return Crossing(
        torch.randn(tokens, heads, dim, generator=random),
        torch.randn(rows, heads, dim, generator=random),
    )


@pytest.mark.parametrize(
    ("tokens", "rows", "sound", "skipped", "width"),
    [(30, 150, 150, 3, 7), (12, 150, 61, 4, 7), (5, 90, 2, 4, 9), (9, 90, 3, 1, 7)],
)
def test_times_are_those_of_transformers(
    tokens: int, rows: int, sound: int, skipped: int, width: int
) -> None:
    made = crossing(tokens, rows, heads=3)
    scores = torch.einsum("thd,rhd->htr", made.queries * 16**-0.5, made.keys)
    output = ModelOutput(
        cross_attentions=[[scores.softmax(-1)[None]]], sequences=torch.zeros(1, tokens + 1)
    )
    config = SimpleNamespace(decoder_layers=1, median_filter_width=width)
    theirs = WhisperGenerationMixin._extract_token_timestamps(
        SimpleNamespace(config=config),
        output,
        [[0, head] for head in range(3)],
        num_frames=2 * sound,
        num_input_ids=skipped,
    )
    found = token_rows(made, rows=sound, skipped=skipped, filter_width=width)
    if tokens - skipped > 1:
        assert np.allclose(found * 0.02, theirs[0, skipped:-1].numpy())
    else:
        assert found.tolist() == [0.0]  # transformers divides by a deviation of zero.


def test_what_isnt_finite_is_told() -> None:
    made = crossing(8, 40, 2)
    made.queries[3, 1, 0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        token_rows(made, rows=40, skipped=1, filter_width=7)
