"""Which tokens a transcript may hold next: Whisper's rules (Radford et al. 2022, arXiv:2212.04356,
section 4.5, and the logits processors that its authors published)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.protocol.common import SpeechRules, TimestampRules


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
