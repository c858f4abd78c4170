"""The interfaces of samplers, which compute at once or on a device's queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import torch

from penstock.protocol.common import ErrorCode, TokenLogprobs, TokenSampling
from penstock_worker.batch.logits import Logits
from penstock_worker.sampler.adjustments import SequenceAdjustments, adjusted_values

if TYPE_CHECKING:
    from torch import Tensor

IMPOSSIBLE = -1e30
"""Reported in place of a log-probability of -inf."""
NOT_FINITE = "the model gave logits that are not finite numbers"
_NOTHING = np.zeros(0, np.int32)
NO_TOKEN_LEFT = (
    "allowed_token_ids, bad_words, thinking_token_budget, the grammar and the model's "
    "suppress_tokens together leave no token to choose"
)


class SampleRequest(msgspec.Struct, frozen=True):
    """Everything that is needed to sample a token from one row of logits."""

    sampling: TokenSampling
    index: int  # Index of the sequence within its request.
    emitted: int  # Number of tokens that the sequence has emitted before.
    allowed: np.ndarray | None = None
    """[vocab] bool, the ids that a grammar allows, at least one; None if there is no grammar."""
    adjustments: SequenceAdjustments | None = None  # In the sequence's current state.

    @property
    def wants_likeliest(self) -> bool:
        """Whether only the id of the largest logit is asked for, of all ids."""
        sampling = self.sampling
        return (
            sampling.temperature == 0
            and sampling.logprobs is None
            and self.adjustments is None
            and self.allowed is None
            and (self.emitted >= sampling.min_tokens or not sampling.held_back)
        )

    def held_back(self) -> Sequence[int] | np.ndarray:
        """Returns the ids that must not be sampled now, unless no other is left.

        Tokens that would end the sequence are held back until min_tokens, except where nothing else
        is allowed.
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

    def held_from(self, row: np.ndarray) -> Sequence[int] | np.ndarray:
        """Returns the same, where it also depends on the row's logits, [vocab] float32, not yet
        adjusted."""
        held = self.held_back()
        speech = None if self.adjustments is None else self.adjustments.speech
        if self.adjustments is None or speech is None or speech.timestamps is None:
            return held
        return speech.held_from(adjusted_values(row, self.adjustments), held)

    def judge(self, choice: SampledToken) -> SampledToken:
        """Turns the sampler's choice into an error if it is a forbidden id, which happens where no
        other id is left."""
        token, adjustments, mask = choice.token, self.adjustments, self.allowed
        if token is None or adjustments is None:
            return choice
        if not adjustments.forbids(token) and (mask is None or mask[token]):
            return choice
        return SampledToken(error=NO_TOKEN_LEFT, error_code="no_token_left")

    def _allowed(self) -> np.ndarray | None:
        """Returns the ids that both the grammar and the adjustments allow; read-only."""
        listed = None if self.adjustments is None else self.adjustments.allowed
        if listed is None or self.allowed is None:
            return self.allowed if listed is None else listed
        return self.allowed & listed


class SampledToken(msgspec.Struct, frozen=True):
    """The outcome of a request: a token, or why there is none."""

    token: int | None = None
    logprobs: TokenLogprobs | None = None  # If requested.
    error: str | None = None
    deferred: bool = False  # Whether there is no token yet, because the grammar's mask is late.
    error_code: ErrorCode | None = None  # See SlotResult.


NO_FINITE_LOGITS = SampledToken(error=NOT_FINITE)


def found(tokens: list[int]) -> list[SampledToken]:
    """The outcomes where the most likely tokens are known; -1 where a logit is not finite."""
    return [NO_FINITE_LOGITS if token < 0 else SampledToken(token) for token in tokens]


class Sampler(Protocol):
    """Samples next tokens from logits, each row independently. May be called from several
    threads."""

    @property
    def fingerprint(self) -> str:
        """Everything but the logits and requests that results depend on."""

    def sample(self, logits: Logits, requests: list[SampleRequest]) -> list[SampledToken]:
        """Samples one token for each row. `logits` is [rows, vocab] float32, and is not
        modified."""

    def score(
        self, logits: Logits, tokens: Sequence[int], count: int
    ) -> list[TokenLogprobs] | None:
        """Returns the log-probabilities of a given token of each row, and of its `count` most
        likely ones.

        `logits` is as for `sample`. Returns None if any logit is not finite.
        """


class QueuedSamples(Protocol):
    """Tokens that are being sampled."""

    @property
    def tokens(self) -> Tensor:
        """[rows] int64 on the device, valid when its queue has reached them; -1 where a logit is
        not finite."""

    def sampled(self) -> list[SampledToken]:
        """Waits for the tokens and returns one for each row."""


class QueuedSampler(Protocol):
    """A sampler that works on the queue of the device that has the logits.

    What a slot's later tokens need of earlier ones (counts for penalties) is kept on the device.
    """

    in_order: bool
    """Whether so a slot's tokens have to be sampled one after another."""

    @property
    def fingerprint(self) -> str:
        """Everything but the logits and requests that results depend on."""

    def launch(
        self, logits: Logits, requests: list[SampleRequest], slots: list[int]
    ) -> QueuedSamples:
        """Queues the sampling of one token for each row. `logits` is [rows, vocab] on the device;
        `slots` are those of the rows."""

    def needs_host(self, request: SampleRequest) -> bool:
        """Returns whether `launch` needs adjustments that have been advanced by the slot's newest
        token. Called only for requests with adjustments."""

    def queue_score(
        self, logits: Logits, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs] | None]:
        """Queues Sampler.score. Calling the result waits for it."""


class HostSamples:
    """The tokens of a step, which are known already."""

    def __init__(self, sampled: list[SampledToken]) -> None:
        self._sampled = sampled

    @property
    def tokens(self) -> Tensor:
        """[rows] int64; -1 where there is none."""
        return torch.tensor([-1 if one.token is None else one.token for one in self._sampled])

    def sampled(self) -> list[SampledToken]:
        return self._sampled


class HostSampler:
    """Keeps no state between steps, because the host knows all tokens."""

    in_order = False

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @property
    def fingerprint(self) -> str:
        return self._sampler.fingerprint

    def launch(
        self, logits: Logits, requests: list[SampleRequest], slots: list[int]
    ) -> HostSamples:
        return HostSamples(self._sampler.sample(logits, requests))

    def needs_host(self, request: SampleRequest) -> bool:
        return False

    def queue_score(
        self, logits: Logits, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs] | None]:
        scores = self._sampler.score(logits, tokens, count)
        return lambda: scores
