"""What the runner needs from whatever chooses tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from torch import Tensor

from penstock.protocol.common import ErrorCode, TokenLogprobs, TokenSampling
from penstock_worker.sampler.adjustments import SequenceAdjustments

IMPOSSIBLE = -1e30
"""What is reported for a log-probability of -inf."""
NOT_FINITE = "the model gave logits that are not finite numbers"
_NOTHING = np.zeros(0, np.int32)
NO_TOKEN_LEFT = "allowed_token_ids, bad_words and the grammar together leave no token to choose"


class SampleRequest(msgspec.Struct, frozen=True):
    """A token for one row of logits."""

    sampling: TokenSampling
    index: int  # Of the sequence in its request.
    emitted: int  # Tokens that the sequence has emitted before.
    allowed: np.ndarray | None = None
    """[vocab] bool, ids that a grammar allows, at least one; None: all."""
    adjustments: SequenceAdjustments | None = None  # Of the sequence, as they stand now.

    def held_back(self) -> Sequence[int] | np.ndarray:
        """Ids that can't be chosen now, unless no other is left.

        What ends a sequence is held back until min_tokens, but not where nothing else is allowed.
        """
        sampling = self.sampling
        early = sampling.held_back if self.emitted < sampling.min_tokens else ()
        banned = _NOTHING if self.adjustments is None else self.adjustments.banned_ids
        allowed = self._allowed()
        if allowed is None:
            if not len(banned):
                return early
            return np.concatenate((np.array(early, np.int32), banned)) if early else banned
        if self.allowed is None and self.adjustments is not None:
            disallowed = self.adjustments.disallowed
            if not early and not len(banned):
                return disallowed
            if len(disallowed) + len(banned) + len(early) < len(allowed):  # Some id is left.
                return np.concatenate((disallowed, banned, np.array(early, np.int32)))
        rest = allowed.copy()
        rest[banned] = False
        kept = rest
        if early:
            kept = rest.copy()
            kept[[token for token in early if token < len(kept)]] = False
        return np.flatnonzero(~(kept if kept.any() else rest)).astype(np.int32)

    def judge(self, choice: SampledToken) -> SampledToken:
        """What becomes of the sampler's choice: it is a forbidden id where no other is left."""
        token, adjustments, mask = choice.token, self.adjustments, self.allowed
        if token is None or adjustments is None:
            return choice
        if not adjustments.forbids(token) and (mask is None or mask[token]):
            return choice
        return SampledToken(error=NO_TOKEN_LEFT, error_code="no_token_left")

    def _allowed(self) -> np.ndarray | None:
        """By the grammar and by the adjustments. Not to be changed."""
        listed = None if self.adjustments is None else self.adjustments.allowed
        if listed is None or self.allowed is None:
            return self.allowed if listed is None else listed
        return self.allowed & listed


class SampledToken(msgspec.Struct, frozen=True):
    """What came of a request: a token, or why there is none."""

    token: int | None = None
    logprobs: TokenLogprobs | None = None  # If asked for.
    error: str | None = None
    deferred: bool = False  # There is no token yet, because the mask is late.
    error_code: ErrorCode | None = None  # See SlotResult.


class Sampler(Protocol):
    """Chooses next tokens from logits, each row by itself. May be called from several threads."""

    @property
    def fingerprint(self) -> str:
        """All that its numbers depend on beside the logits."""

    def sample(self, logits: Tensor, requests: list[SampleRequest]) -> list[SampledToken]:
        """One choice for each row. logits: [rows, vocab] float32, not changed."""

    def score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> list[TokenLogprobs] | None:
        """Log-probabilities of a given token of each row, and of its `count` likeliest.

        logits: as above.  None where a row has a logit that isn't a finite number.
        """
