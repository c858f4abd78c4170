"""What all layers of one forward pass share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock_worker.attention.encoded import NOTHING_ENCODED, EncodedAttention
from penstock_worker.attention.interface import Rotation, StepAttention
from penstock_worker.layers.recurrent.interface import NO_STATES, StepStates

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RowMedia:
    """What stands in the place of a step's placeholders (see media.interface.BatchMedia)."""

    rows: Tensor
    """The step's rows that have embeddings of media, [n] int64."""
    embeddings: Tensor | None
    """The embeddings of these rows, [n, width]."""
    positions: Tensor | None
    """Positions of each row along time, height and width, [3, rows] int64; None for models without
    such."""

    def put_into(self, embedded: Tensor) -> None:
        """Replaces the placeholders' rows of [rows, hidden]."""
        if self.embeddings is not None:
            embedded[self.rows] = self._part(0, embedded)

    def add_to(self, residual: Tensor, level: int) -> None:
        """Adds to [rows, hidden] a level of the tower's DeepStack (see
        VisionSpec.deepstack_layers)."""
        if self.embeddings is not None:
            residual[self.rows] += self._part(1 + level, residual)

    def _part(self, number: int, like: Tensor) -> Tensor:
        size = like.shape[1]
        parts = torch.empty(0) if self.embeddings is None else self.embeddings
        return parts[:, number * size : (number + 1) * size].to(like.dtype)


@dataclass(frozen=True)
class Step:
    """The inputs of a step that every layer reads."""

    rotations: tuple[Rotation, ...]
    """Rotation of each row, by each of the model's rotary embeddings."""
    attention: StepAttention
    """Attention for this step's batch."""
    states: StepStates = NO_STATES
    """The states of this step's sequences in recurrent layers."""
    encoded: EncodedAttention = NOTHING_ENCODED
    """Attention to the encoder's output for this step's batch, of a model whose layers attend to
    it."""
    inputs: Tensor | None = None
    """[rows, layers, size], of a model whose layers have inputs of their own."""
    media: RowMedia | None = None
    """What stands in the place of some of the tokens."""
    tokens: Tensor | None = None
    """Ids of the rows' tokens, [rows] int64; None: no layer asks for them."""
    positions: Tensor | None = None
    """Position of each row in its sequence, [rows] int64; None: no layer asks for them."""
