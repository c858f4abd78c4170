"""What a backend shows of its attention to an encoder's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from penstock_worker.forward.interface import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Crossing:
    """Queries and keys of the rows of a batch with one sequence, in the heads that follow the sound
    (see penstock.model.transcription_facts.Alignment), in their order; float32."""

    queries: Tensor
    """Queries of the decoder's rows, [decoder's rows, heads, head_dim]."""
    keys: Tensor
    """Keys of the encoder's rows, [encoder's rows, heads, head_dim]."""

    @staticmethod
    def joined(parts: list[Crossing]) -> Crossing:
        """Returns the queries and keys of a sequence that was computed in several chunks."""
        return Crossing(
            torch.cat([part.queries for part in parts]), torch.cat([part.keys for part in parts])
        )


@runtime_checkable
class Crosses(Protocol):
    """A Forward that shows its attention to an encoder's output."""

    def crossing(self, batch: Batch) -> Crossing:
        """Computes every row of the batch, as `logits` does, and stores its keys and values.

        The batch has one sequence. A row has the same bits however the sequence was divided into
        chunks.
        """
