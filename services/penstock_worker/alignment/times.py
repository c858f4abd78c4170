"""From attention to a sound to the times of tokens.

Source: the method that Whisper's authors published with their code in 2023, with the numbers of
transformers' `return_token_timestamps`: weights of the heads that follow the sound, each column
normalised over the tokens, a median over neighbouring rows of the encoder, the mean over heads,
and dynamic time warping.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from penstock_worker.alignment.interface import Crossing
from penstock_worker.alignment.warping import first_columns


def token_rows(crossing: Crossing, *, rows: int, skipped: int, filter_width: int) -> np.ndarray:
    """Returns for each of the decoder's tokens after the first `skipped` ones the row of the
    encoder from which on it looks for the next token, [tokens] float32.

    crossing: of the whole sequence.  rows: of the encoder, its first ones, that hold sound.
    Raises ValueError for numbers that aren't finite.
    """
    mean: Tensor | None = None
    for head in range(crossing.queries.shape[1]):
        weights = _weights(crossing, head)[skipped:, :rows]
        smooth = _medians(_normalised(weights), filter_width)
        mean = smooth if mean is None else mean + smooth
    if mean is None or not bool(torch.isfinite(mean).all()):
        raise ValueError("attention to the sound is not finite")
    mean = mean / crossing.queries.shape[1]
    return first_columns(-mean.double().numpy()).astype(np.float32)


def _weights(crossing: Crossing, head: int) -> Tensor:
    """Returns one head's weights, [tokens, encoder's rows]."""
    queries, keys = crossing.queries[:, head], crossing.keys[:, head]
    return (queries * queries.shape[-1] ** -0.5 @ keys.T).softmax(-1)


def _normalised(weights: Tensor) -> Tensor:
    """Each column with a mean of 0 and a standard deviation of 1; one whose weights are all the
    same is 0."""
    deviation, mean = torch.std_mean(weights, dim=0, correction=0, keepdim=True)
    return (weights - mean) / deviation.masked_fill(deviation == 0, 1.0)


def _medians(weights: Tensor, width: int) -> Tensor:
    """The median of each number and its neighbours in the same row; beyond its ends, the row is
    mirrored."""
    beside = width // 2
    if weights.shape[-1] <= beside:
        return weights
    padded = torch.nn.functional.pad(weights[None], (beside, beside), mode="reflect")[0]
    return padded.unfold(-1, width, 1).sort(-1).values[..., beside]
