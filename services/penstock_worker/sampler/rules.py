"""What one sequence's sampling demands beyond the numbers in its TokenSampling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from penstock.protocol.common import Adjustments, TokenSampling
from penstock_worker.sampler.bad_words import BadWords
from penstock_worker.sampler.bits import words_of
from penstock_worker.sampler.penalties import Penalties


class Rules:
    """Allowed ids, bad words, biases and penalties of one sequence.

    prompt, output: its tokens so far.  vocab: ids.  `advance` is told each new token.
    """

    def __init__(
        self, wanted: Adjustments, prompt: Sequence[int], output: Sequence[int], vocab: int
    ) -> None:
        self._wanted = wanted
        self._vocab = vocab
        self.penalties: Penalties | None = None
        if wanted.presence or wanted.frequency or wanted.repetition != 1.0:
            self.penalties = Penalties(
                presence=wanted.presence,
                frequency=wanted.frequency,
                repetition=wanted.repetition,
                prompt=prompt,
                output=output,
            )
        self._bad_words = BadWords(wanted.bad_words, output) if wanted.bad_words else None

    @property
    def bias(self) -> dict[int, float]:
        """What is added to the logits of ids."""
        return self._wanted.bias

    @cached_property
    def bias_ids(self) -> np.ndarray:
        """int32, in the order of `bias`."""
        return np.fromiter(self._wanted.bias, np.int32, len(self._wanted.bias))

    @cached_property
    def biases(self) -> np.ndarray:
        """float64, in the order of `bias`."""
        return np.fromiter(self._wanted.bias.values(), np.float64, len(self._wanted.bias))

    @cached_property
    def allowed(self) -> np.ndarray | None:
        """[vocab] bool, not to be changed; None: all."""
        if self._wanted.allowed is None:
            return None
        mask = np.zeros(self._vocab, dtype=bool)
        mask[list(self._wanted.allowed)] = True
        return mask

    @property
    def limited(self) -> bool:
        """Whether only some ids are allowed."""
        return self._wanted.allowed is not None

    @cached_property
    def allowed_words(self) -> np.ndarray | None:
        """`allowed`, a bit each (see bits.py), not to be changed; None: all."""
        return None if self.allowed is None else words_of(self.allowed)

    @cached_property
    def disallowed(self) -> np.ndarray:
        """The ids that aren't `allowed`, int32: most steps need no more."""
        if self.allowed is None:
            return np.zeros(0, np.int32)
        return np.flatnonzero(~self.allowed).astype(np.int32)

    @property
    def banned(self) -> frozenset[int]:
        """Ids that would complete a bad word."""
        return frozenset() if self._bad_words is None else self._bad_words.banned

    @property
    def ban_follows_output(self) -> bool:
        """Whether `banned` may be another after the next token."""
        return self._bad_words is not None and self._bad_words.follows_output

    def advance(self, token: int) -> None:
        """The output has one token more."""
        if self.penalties is not None:
            self.penalties.advance(token)
        if self._bad_words is not None:
            self._bad_words.advance(token)

    def forbids(self, token: int) -> bool:
        """Whether it may not be the next."""
        return token in self.banned or (self.allowed is not None and not self.allowed[token])


def rules_of(
    sampling: TokenSampling, tokens: Sequence[int], prompt: int, vocab: int
) -> Rules | None:
    """Of a sequence whose first `prompt` tokens are its prompt; None where it has none."""
    if sampling.adjustments is None:
        return None
    return Rules(sampling.adjustments, tokens[:prompt], tokens[prompt:], vocab)
