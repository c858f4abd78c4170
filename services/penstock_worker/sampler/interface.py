"""What the runner needs from whatever chooses tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from penstock.protocol.common import TokenLogprobs, TokenSampling

IMPOSSIBLE = -1e30
"""What is reported for a log-probability of -inf."""
NOT_FINITE = "the model gave logits that are not finite numbers"


@dataclass(frozen=True)
class Ask:
    """One row's request. index: of the sequence.  emitted: tokens that it has emitted before."""

    sampling: TokenSampling
    index: int
    emitted: int

    @property
    def held_back(self) -> tuple[int, ...]:
        """Ids that can't be chosen now, unless no other is left."""
        sampling = self.sampling
        return sampling.held_back if self.emitted < sampling.min_tokens else ()


@dataclass(frozen=True)
class Choice:
    """token, and its log-probabilities if asked for; or error, why there is none."""

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    error: str | None = None


class Sampler(Protocol):
    """Chooses next tokens from logits, each row by itself. May be called from several threads."""

    @property
    def numerics(self) -> str:
        """All that its numbers depend on beside the logits."""

    def sample(self, logits: Tensor, asks: list[Ask]) -> list[Choice]:
        """One choice for each row. logits: [rows, vocab] float32, not changed."""
