"""Choosing tokens with everything sorted and nothing clever, in numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from penstock_kernels.cpu.adjustments import CPURowAdjustments
from penstock_kernels.cpu.sampler import Row

EDGE = 1e-12
"""How far from a boundary the order of a sum may decide, relative to the whole."""


def kept(logits: np.ndarray, row: Row) -> tuple[np.ndarray, np.ndarray]:
    """(ids, weights) of what the cuts leave, by id. logits: [vocab] float32, finite."""
    logits = held_back(logits, row.held_back)
    if row.adjustments is not None:
        logits = adjusted(logits, row.adjustments)
    order = np.lexsort((np.arange(len(logits)), -logits))
    if row.temperature == 0:
        return order[:1], np.ones(1)
    if row.top_k > 0:
        order = order[: row.top_k]
    with np.errstate(over="ignore"):
        shifted = (logits.astype(np.float64) - float(logits[order[0]])) / row.temperature
    weights = np.exp(shifted)
    if row.top_p < 1:
        # Again: logits that differ may have one weight, in float64.
        order = order[np.lexsort((order, -weights[order]))]
        held = np.cumsum(weights[order])
        order = order[: int(np.searchsorted(held, row.top_p * held[-1])) + 1]
    ids = np.sort(order[weights[order] >= row.min_p])
    return ids, weights[ids]


def held_back(logits: np.ndarray, ids: tuple[int, ...]) -> np.ndarray:
    masked = logits.copy()
    masked[[token for token in ids if 0 <= token < len(logits)]] = -np.inf
    return masked if np.isfinite(masked).any() else logits


def adjusted(logits: np.ndarray, adjustments: CPURowAdjustments) -> np.ndarray:
    """Biased and then penalised, one id after the other."""
    result = [float(logit) for logit in logits]
    for token, bias in zip(
        adjustments.biased_ids.tolist(), adjustments.biases.tolist(), strict=True
    ):
        result[token] = _single(result[token] + bias)
    for token, count in zip(
        adjustments.seen_ids.tolist(), adjustments.seen_counts.tolist(), strict=True
    ):
        logit = result[token]
        if logit > 0:
            logit = logit / adjustments.repetition
        else:
            logit = logit * adjustments.repetition
        if count > 0:
            logit = logit - adjustments.frequency * count - adjustments.presence
        result[token] = _single(logit)
    return np.array(result, dtype=np.float32)


def _single(x: float) -> float:
    """Rounded to float32, within its finite numbers; -inf stays."""
    if x == -math.inf:
        return x
    most = float(np.finfo(np.float32).max)
    return float(np.float32(min(max(x, -most), most)))


def may_be(token: int, logits: np.ndarray, row: Row) -> bool:
    """Whether the row's definition gives this token, or would a hair's breadth aside."""
    return any(drawn(token, *kept(logits, near), row.draw) for near in at_the_edge(row))


def drawn(token: int, ids: np.ndarray, weights: np.ndarray, draw: float) -> bool:
    """Whether draw falls on the token's share of the cumulative sum."""
    place = int(np.searchsorted(ids, token))
    if place == len(ids) or ids[place] != token or weights[place] == 0:
        return False
    end = np.cumsum(weights)[place] / weights.sum()
    begin = end - weights[place] / weights.sum()
    return bool(begin - EDGE <= draw <= end + EDGE)


def at_the_edge(row: Row) -> Iterator[Row]:
    """The row, and its neighbours: what another order of summation may make of its cuts."""
    yield row
    for top_p in (row.top_p * (1 - EDGE), row.top_p * (1 + EDGE)):
        for min_p in (row.min_p * (1 - EDGE), row.min_p * (1 + EDGE)):
            yield row._replace(top_p=top_p if row.top_p < 1 else 1.0, min_p=min(min_p, 1.0))


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    values = logits.astype(np.float64)
    shifted = values - values.max()
    return shifted - math.log(math.fsum(np.exp(shifted)))
