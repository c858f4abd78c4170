"""Adjustments of a sequence's logits before a token is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock_kernels import reference as ops
from penstock_worker.sampler.bad_words import NOTHING, BadWords, Banned
from penstock_worker.sampler.penalties import Penalties, PromptIds
from penstock_worker.sampler.speech import SpeechBans
from penstock_worker.sampler.thinking import ThinkingState
from penstock_worker.sampler.token_masks import words_of

if TYPE_CHECKING:
    from torch import Tensor


class RequestAdjustments:
    """The part that all sequences of a request share; made once and immutable."""

    def __init__(
        self, wanted: LogitsAdjustments, prompt_token_ids: Sequence[int], vocab: int
    ) -> None:
        self.wanted = wanted
        self.vocab = vocab
        self._prompt = PromptIds(prompt_token_ids if wanted.repetition != 1.0 else ())
        self.bad_words = BadWords(wanted.bad_words) if wanted.bad_words else None

    def penalties(self, output: Sequence[int]) -> Penalties | None:
        """Returns the penalties of a sequence that has emitted `output`, or None if nothing is
        penalised."""
        wanted = self.wanted
        if not wanted.presence and not wanted.frequency and wanted.repetition == 1.0:
            return None
        return Penalties(
            presence=wanted.presence,
            frequency=wanted.frequency,
            repetition=wanted.repetition,
            prompt=self._prompt,
            output=output,
        )

    @cached_property
    def bias_ids(self) -> np.ndarray:
        """int32, in the order of `bias`."""
        return np.fromiter(self.wanted.bias, np.int32, len(self.wanted.bias))

    @cached_property
    def biases(self) -> np.ndarray:
        """float64, in the order of `bias`."""
        return np.fromiter(self.wanted.bias.values(), np.float64, len(self.wanted.bias))

    @cached_property
    def allowed(self) -> np.ndarray | None:
        """[vocab] bool, read-only; None if all ids are allowed."""
        if self.wanted.allowed is None:
            return None
        mask = np.zeros(self.vocab, dtype=bool)
        mask[list(self.wanted.allowed)] = True
        return mask

    @cached_property
    def allowed_words(self) -> np.ndarray | None:
        """`allowed` as a bitmask (see words_of), read-only; None if all ids are allowed."""
        return None if self.allowed is None else words_of(self.allowed)

    @cached_property
    def disallowed(self) -> np.ndarray:
        """The ids that are not in `allowed`, int32, ascending."""
        if self.allowed is None:
            return np.zeros(0, np.int32)
        return np.flatnonzero(~self.allowed).astype(np.int32)


class SequenceAdjustments:
    """The allowed ids, bad words, rules of transcripts, budget of thoughts, biases and penalties of
    one sequence."""

    def __init__(self, request: RequestAdjustments, output: Sequence[int]) -> None:
        """`output` has the ids that the sequence has emitted. Each later one is passed to
        `advance`."""
        self._request = request
        self._bad_words = request.bad_words
        self._state = 0 if self._bad_words is None else self._bad_words.after(output)
        self._together: np.ndarray | None = None
        """All that is banned, once it was asked for in this state."""
        speech = request.wanted.speech
        self.speech = None if speech is None else SpeechBans(speech, output, request.vocab)
        thinking = request.wanted.thinking
        self._thinking = (
            None if thinking is None else ThinkingState(thinking, output, request.vocab)
        )
        self.penalties = request.penalties(output)

    def beside(self, output: Sequence[int]) -> SequenceAdjustments:
        """Returns the adjustments of another sequence of the same request, which has emitted
        `output`."""
        return SequenceAdjustments(self._request, output)

    def after(self, token: int) -> SequenceAdjustments | None:
        """Returns a copy that has been advanced by a token; None with rules of transcripts, whose
        state isn't copied."""
        if self.speech is not None:
            return None
        other = copy(self)
        if self.penalties is not None:
            other.penalties = self.penalties.copy()
        if self._thinking is not None:
            other._thinking = self._thinking.copy()
        other.advance(token)
        return other

    @property
    def bias(self) -> dict[int, float]:
        """Numbers that are added to logits, by token id."""
        return self._request.wanted.bias

    @property
    def bias_ids(self) -> np.ndarray:
        """int32, in the order of `bias`."""
        return self._request.bias_ids

    @property
    def biases(self) -> np.ndarray:
        """float64, in the order of `bias`."""
        return self._request.biases

    @property
    def allowed(self) -> np.ndarray | None:
        """[vocab] bool, read-only; None if all ids are allowed."""
        return self._request.allowed

    @property
    def limited(self) -> bool:
        """Whether only some ids are allowed."""
        return self._request.wanted.allowed is not None

    @property
    def allowed_words(self) -> np.ndarray | None:
        """`allowed` as a bitmask (see words_of), read-only; None if all ids are allowed."""
        return self._request.allowed_words

    @property
    def disallowed(self) -> np.ndarray:
        """The ids that are not in `allowed`, int32. Most steps need nothing else of it."""
        return self._request.disallowed

    @property
    def banned(self) -> frozenset[int]:
        """Ids that would complete a bad word."""
        return self._banned.ids

    @property
    def banned_ids(self) -> np.ndarray:
        """What can't come next by bad words, rules and the budget of thoughts: int32, ascending,
        read-only. With bad words alone it is the same array for all sequences of a request that are
        in the same state."""
        more = [
            each.array
            for each in (self.speech, self._thinking)
            if each is not None and len(each.array)
        ]
        if not more:
            return self._banned.array
        if self._together is None:
            together = self._banned.array
            for each in more:
                together = np.union1d(together, each)
            self._together = together
        return self._together

    @property
    def bans(self) -> bool:
        """Whether there are such ids now."""
        forced = self._thinking is not None and self._thinking.forced is not None
        return self.speech is not None or forced or bool(self.banned)

    @property
    def ban_follows_output(self) -> bool:
        """Whether `banned_ids` may change with the next token."""
        if self.speech is not None:
            return True
        if self._thinking is not None and self._thinking.follows_output:
            return True
        return self._bad_words is not None and self._bad_words.follows_output

    def advance(self, token: int) -> None:
        """Updates the state with a token that was emitted."""
        if self.penalties is not None:
            self.penalties.advance(token)
        if self._bad_words is not None:
            self._state = self._bad_words.step(self._state, token)
        self._together = None
        if self.speech is not None:
            self.speech.advance(token)
        if self._thinking is not None:
            self._thinking.advance(token)

    @property
    def _banned(self) -> Banned:
        return NOTHING if self._bad_words is None else self._bad_words.banned(self._state)

    def forbids(self, token: int) -> bool:
        """Returns whether the token must not come next."""
        if token in self.banned or (self.speech is not None and self.speech.forbids(token)):
            return True
        if self._thinking is not None and self._thinking.forbids(token):
            return True
        return self.allowed is not None and not self.allowed[token]


def adjustments_of(
    sampling: TokenSampling, token_ids: Sequence[int], num_prompt: int, vocab: int
) -> SequenceAdjustments | None:
    """Returns the adjustments of a sequence whose first `num_prompt` tokens are its prompt, or None
    if it has none."""
    if sampling.adjustments is None:
        return None
    prompt_token_ids, output = token_ids[:num_prompt], token_ids[num_prompt:]
    return SequenceAdjustments(
        RequestAdjustments(sampling.adjustments, prompt_token_ids, vocab), output
    )


def adjust_row(logits: Tensor, adjustments: SequenceAdjustments) -> Tensor:
    """Returns a copy of the row. logits: [vocab] float32."""
    penalties = adjustments.penalties
    if penalties is None:
        return ops.adjust_row(logits, ops.RowAdjustments(adjustments.bias))
    counts = dict(zip(penalties.ids.tolist(), penalties.counts.tolist(), strict=True))
    wanted = ops.RowAdjustments(
        adjustments.bias, counts, penalties.presence, penalties.frequency, penalties.repetition
    )
    return ops.adjust_row(logits, wanted)


def adjusted_values(row: np.ndarray, adjustments: SequenceAdjustments) -> np.ndarray:
    """Returns the same in numpy: the row itself where nothing changes it. row: [vocab] float32."""
    if adjustments.penalties is None and not adjustments.bias:
        return row
    return adjust_row(torch.from_numpy(row), adjustments).numpy()
