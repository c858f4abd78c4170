"""Adjustments of a sequence's logits before a token is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.protocol.common import LogitsAdjustments, SpeechRules, TimestampRules, TokenSampling
from penstock_kernels import reference as ops
from penstock_worker.sampler.bad_words import NOTHING, BadWords, Banned
from penstock_worker.sampler.penalties import Penalties, PromptIds
from penstock_worker.sampler.thinking import ThinkingState

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


# Which tokens a transcript may hold next: Whisper's rules (Radford et al. 2022, arXiv:2212.04356,
# section 4.5, and the logits processors that its authors published).


class SpeechBans:
    """The rules of one sequence, in its current state, which is a function of its output."""

    def __init__(self, rules: SpeechRules, output: Sequence[int], vocab: int) -> None:
        """`output` has the ids that the sequence has emitted."""
        self._rules = rules
        self._vocab = vocab
        self._emitted = 0
        self._state = None if rules.timestamps is None else TimestampState(rules.timestamps)
        self._mask: np.ndarray | None = None
        self._array: np.ndarray | None = None
        for token in output:
            self.advance(token)

    def advance(self, token: int) -> None:
        """Updates the state with a token that was emitted."""
        self._emitted += 1
        if self._state is not None:
            self._state.advance(token)
            self._mask = self._array = None
        elif self._emitted == 1:
            self._mask = self._array = None

    @property
    def array(self) -> np.ndarray:
        """The ids that can't come next: int32, ascending, read-only."""
        if self._array is None:
            self._array = np.flatnonzero(self._banned()).astype(np.int32)
            self._array.setflags(write=False)
        return self._array

    def forbids(self, token: int) -> bool:
        return bool(self._banned()[token])

    def held_from(
        self, row: np.ndarray, held: Sequence[int] | np.ndarray
    ) -> Sequence[int] | np.ndarray:
        """`held`, and all but the timestamps where these are more probable together than any other
        token that is left. row: [vocab] logits after biases and penalties, which transformers
        applies before these rules."""
        rules = self._rules.timestamps
        if rules is None:
            return held
        left = row.astype(np.float64)
        left[np.asarray(held, np.int64)] = -np.inf
        if not _timestamps_prevail(left, rules.first):
            return held
        return np.union1d(np.asarray(held, np.int32), np.arange(rules.first, dtype=np.int32))

    @property
    def timestamps(self) -> TimestampRules | None:
        return self._rules.timestamps

    def _banned(self) -> np.ndarray:
        """Whether each token is banned, [vocab] bool."""
        if self._mask is None:
            self._mask = mask = np.zeros(self._vocab, bool)
            mask[list(self._rules.suppressed)] = True
            if not self._emitted:
                mask[list(self._rules.suppressed_first)] = True
            if self._state is not None:
                self._state.ban(mask)
        return self._mask


class TimestampState:
    """What the timestamps of an output leave open."""

    def __init__(self, rules: TimestampRules) -> None:
        self._rules = rules
        self._begun = False
        self._last_was = False
        """Whether the last token was a timestamp."""
        self._one_before_was = True
        """Whether the one before was; an output begins as if it had."""
        self._latest: int | None = None

    def advance(self, token: int) -> None:
        """Updates the state with a token that was emitted."""
        is_timestamp = token >= self._rules.first
        self._one_before_was = self._last_was if self._begun else True
        self._last_was = is_timestamp
        self._begun = True
        if is_timestamp:
            self._latest = token

    def ban(self, mask: np.ndarray) -> None:
        """Sets what can't come next. mask: [vocab] bool."""
        rules = self._rules
        first = rules.first
        mask[rules.none] = True
        if not self._begun:
            mask[:first] = True
            if rules.max_initial is not None:
                mask[first + rules.max_initial + 1 :] = True
            return
        if self._last_was and self._one_before_was:
            mask[first:] = True  # A pair is complete: text comes, or the end.
        elif self._last_was:
            mask[: rules.text_end] = True  # The other half of the pair comes, or the end.
        if self._latest is not None:
            # The half of a pair that comes may repeat the other one; a segment takes some time.
            half = self._last_was and not self._one_before_was
            mask[first : self._latest + (0 if half else 1)] = True


def _timestamps_prevail(left: np.ndarray, first: int) -> bool:
    """Whether the timestamps' probabilities add up to more than any other's. left: [vocab] float64
    logits, -inf where banned."""
    times = left[first:]
    highest = times.max(initial=-np.inf)
    if not np.isfinite(highest):
        return False
    together = highest + np.log(np.exp(times - highest).sum())
    return bool(together > left[:first].max(initial=-np.inf))


# A row of logits after its biases and penalties, on the host.


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


# Bitmasks of token ids, in the layout that the CUDA kernels read: id i is bit i % 32 of word i //
# 32.

_WORD = 32


def words_of(ids: np.ndarray) -> np.ndarray:
    """Packs [vocab] bool into [ceil(vocab / 32)] int32."""
    words = np.zeros(-(-len(ids) // _WORD), np.int32)
    packed = np.packbits(ids, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    return words


@lru_cache(maxsize=4)
def everything(vocab: int) -> np.ndarray:
    """Returns the mask of all ids, read-only."""
    return words_of(np.ones(vocab, dtype=bool))


def without(words: np.ndarray, ids: Sequence[int] | np.ndarray, vocab: int) -> np.ndarray:
    """Returns a copy of the mask without `ids`. Ids outside of the vocabulary are ignored."""
    left = words.copy()
    if not len(ids):
        return left
    given = np.asarray(ids, dtype=np.int64)
    given = given[(given >= 0) & (given < vocab)]
    bits = np.left_shift(np.uint32(1), (given % _WORD).astype(np.uint32))
    np.bitwise_and.at(left.view(np.uint32), given // _WORD, ~bits)
    return left
