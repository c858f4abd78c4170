"""The sequences of a step whose tokens are to be aligned in time: from a decoder's attention to a
sound to the times of tokens.

Sources: the method that Whisper's authors published with their code in 2023, with the numbers of
transformers' `return_token_timestamps`: weights of the heads that follow the sound, each column
normalised over the tokens, a median over neighbouring rows of the encoder, the mean over heads, and
dynamic time warping, the cheapest way through a matrix that goes back in neither direction (Sakoe
and Chiba, "Dynamic programming algorithm optimization for spoken word recognition", 1978).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.model.media_facts import alignment_of
from penstock.model.prepared_model import PreparedModel
from penstock.model.transcription_facts import Alignment
from penstock.protocol.common import Vectors
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.alignment.interface import Crosses, Crossing
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.sampler import SampledToken
from penstock_worker.steps.feature import Outcomes, StepFeature

if TYPE_CHECKING:
    from torch import Tensor


def can_align(forward: object, prepared: PreparedModel) -> bool:
    """Whether this forward pass says when the tokens of this model are spoken."""
    return isinstance(forward, Crosses) and alignment_of(prepared.media) is not None


class Alignments(StepFeature):
    """Holds what was computed of each such sequence, until it has all of its tokens.

    Each is computed by a forward pass of its own, so its numbers are its own. What is held of one
    takes 4 * (encoder's rows + tokens) * heads * head_dim bytes.
    """

    name = "word times"

    def __init__(
        self, slots: Slots, media: MediaEncodings | None, forward: Crosses, spec: Alignment
    ) -> None:
        """`media`: those of the sequences. `spec`: that of the model."""
        self._slots = slots
        self._extending = () if media is None else (media,)
        self._forward = forward
        self._spec = spec
        self._parts: dict[int, dict[int, Crossing]] = {}

    def take(self, plan: Plan) -> None:
        for number in plan.released:
            self._parts.pop(number, None)

    def reset(self) -> None:
        self._parts.clear()

    def compute(self, scheduled: list[SlotWork], outcomes: Outcomes) -> list[SlotWork]:
        held = self._slots.of(scheduled)
        if all(slot.pooling is None for slot in held):
            return scheduled
        pairs = list(zip(scheduled, held, strict=True))
        for work, slot in pairs:
            if slot.pooling is not None:
                self._align(work, slot, outcomes)
        return [work for work, slot in pairs if slot.pooling is None]

    def _align(self, work: SlotWork, slot: Slot, outcomes: Outcomes) -> None:
        """Computes a work. Adds the times of a sequence that has all of its tokens now,
        and what stands for its token; or that it has failed."""
        batch = prepare_inputs([work], self._slots, self._extending)
        if slot.failed is not None:
            return
        parts = self._parts.setdefault(work.slot, {})
        parts[work.start] = self._forward.crossing(batch)
        if work.start + work.count < len(slot.token_ids):
            return
        whole = Crossing.joined([parts[start] for start in sorted(parts)])
        try:
            outcomes.vectors[work.slot] = _times(whole, slot, self._spec)
            outcomes.known[work.slot] = SampledToken(token=0)
        except ValueError as error:
            outcomes.known[work.slot] = SampledToken(error=str(error))


def alignments(
    slots: Slots, media: MediaEncodings | None, forward: object, spec: Alignment | None
) -> Alignments | None:
    """Returns what tells the times of tokens; None where this forward pass, or the model, can't say
    them."""
    if spec is None or not isinstance(forward, Crosses):
        return None
    return Alignments(slots, media, forward, spec)


def _times(whole: Crossing, slot: Slot, spec: Alignment) -> Vectors:
    """Raises ValueError where there are no times."""
    asked = slot.pooling
    if asked is None or len(whole.queries) <= asked.skipped:
        raise ValueError("word times need at least one token")
    rows = token_rows(whole, rows=asked.rows, skipped=asked.skipped, filter_width=spec.filter_width)
    if sys.byteorder == "big":
        rows = rows.byteswap()
    return Vectors((len(rows),), np.ascontiguousarray(rows).tobytes())


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
    margin = width // 2
    if weights.shape[-1] <= margin:
        return weights
    padded = torch.nn.functional.pad(weights[None], (margin, margin), mode="reflect")[0]
    return padded.unfold(-1, width, 1).sort(-1).values[..., margin]


_BOTH, _ROW, _COLUMN = 0, 1, 2
"""What the way has done to arrive: gone on in rows and columns, in rows, or in columns."""


def first_columns(costs: np.ndarray) -> np.ndarray:
    """Returns for each row the first column that the cheapest way comes through, [rows] int64.

    costs: [rows, columns] float64, with at least one of each. The way begins in the first row and
    column, and ends in the last ones. Sums are rounded to float32. Of equally cheap ways, the one
    is taken that arrives by columns.
    """
    arrived = _arrivals(costs)
    row, column = costs.shape
    found = np.zeros(row, np.int64)
    while row and column:
        found[row - 1] = column - 1
        how = arrived[row + column, row]
        row, column = row - (how != _COLUMN), column - (how != _ROW)
    return found


def _arrivals(costs: np.ndarray) -> np.ndarray:
    """How the cheapest way arrives at row r and column c, counted from 1, at [r + c, r]. Places
    with the same r + c are computed together."""
    rows, columns = costs.shape
    flat = np.ascontiguousarray(costs).reshape(-1)
    arrived = np.empty((rows + columns + 1, rows + 1), np.uint8)
    before = np.full(rows + 1, np.inf, np.float32)
    two_before = before.copy()
    two_before[0] = 0.0
    for total in range(2, rows + columns + 1):
        low, high = max(1, total - columns), min(rows, total - 1)
        both = two_before[low - 1 : high]
        by_row, by_column = before[low - 1 : high], before[low : high + 1]
        is_both = (both < by_row) & (both < by_column)
        is_row = (by_row < both) & (by_row < by_column)
        best = np.where(is_both, both, np.where(is_row, by_row, by_column))
        places = (np.arange(low, high + 1) - 1) * (columns - 1) + total - 2
        current = np.full(rows + 1, np.inf, np.float32)
        current[low : high + 1] = flat[places] + best
        arrived[total, low : high + 1] = np.where(is_both, _BOTH, np.where(is_row, _ROW, _COLUMN))
        two_before, before = before, current
    return arrived
