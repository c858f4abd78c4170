"""A finished answer, as beam search and best_of give several of."""

from __future__ import annotations

import msgspec

from penstock.protocol.common import FinishReason, TokenLogprobs


class Hypothesis(msgspec.Struct, kw_only=True):
    """token_ids: the token that ended it included.  cumulative_logprob: of all of them, of the raw
    distribution.  score: what it was ranked by.  logprobs: one for each token where asked for.
    stop_reason, error: as in SequenceDelta.
    """

    token_ids: list[int]
    text: str
    cumulative_logprob: float
    score: float
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    error: str | None = None
