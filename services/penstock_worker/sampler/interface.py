"""What the runner needs from whatever chooses tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from penstock.protocol.common import ErrorCode, TokenLogprobs, TokenSampling

IMPOSSIBLE = -1e30
"""What is reported for a log-probability of -inf."""
NOT_FINITE = "the model gave logits that are not finite numbers"


@dataclass(frozen=True)
class Ask:
    """One row's request. index: of the sequence.  emitted: tokens that it has emitted before.

    allowed: [vocab] bool, ids that a grammar allows, at least one; None: all.
    """

    sampling: TokenSampling
    index: int
    emitted: int
    allowed: np.ndarray | None = None

    def held_back(self) -> Sequence[int] | np.ndarray:
        """Ids that can't be chosen now, unless no other is left.

        What ends a sequence is held back until min_tokens, but not where a grammar allows nothing
        else.
        """
        sampling = self.sampling
        early = sampling.held_back if self.emitted < sampling.min_tokens else ()
        if self.allowed is None:
            return early
        rest = self.allowed.copy()
        rest[[token for token in early if token < len(rest)]] = False
        return np.flatnonzero(~(rest if rest.any() else self.allowed))


@dataclass(frozen=True)
class Choice:
    """token, and its log-probabilities if asked for; or error, why there is none.

    deferred: there is none yet, because the mask is late.  error_code: see SlotResult.
    """

    token: int | None = None
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    deferred: bool = False
    error_code: ErrorCode | None = None


class Sampler(Protocol):
    """Chooses next tokens from logits, each row by itself. May be called from several threads."""

    @property
    def numerics(self) -> str:
        """All that its numbers depend on beside the logits."""

    def sample(self, logits: Tensor, asks: list[Ask]) -> list[Choice]:
        """One choice for each row. logits: [rows, vocab] float32, not changed."""
