"""Sequences that ask for all kinds of things, and the two samplers' sides of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock_worker.sampler import SampleRequest, SequenceAdjustments, adjustments_of


@dataclass
class Sequence:
    """One side's view of a sequence: rules know `output`, which may lack the newest tokens."""

    sampling: TokenSampling
    index: int
    prompt: list[int]
    vocab: int
    output: list[int] = field(default_factory=list)
    rules: SequenceAdjustments | None = None

    def __post_init__(self) -> None:
        tokens = [*self.prompt, *self.output]
        self.adjustments = adjustments_of(self.sampling, tokens, len(self.prompt), self.vocab)

    def ask(self, ahead: int = 0, allowed: np.ndarray | None = None) -> SampleRequest:
        """ahead: tokens on their way."""
        return SampleRequest(
            self.sampling, self.index, len(self.output) + ahead, allowed, self.adjustments
        )

    def append(self, token: int) -> None:
        self.output.append(token)
        if self.adjustments is not None:
            self.adjustments.advance(token)


def drawn_sampling(rng: np.random.Generator, vocab: int) -> TokenSampling:
    """Draws sampling of any kind; half of the settings are off in most."""

    def maybe(value: object, default: object) -> object:
        return value if rng.random() < 0.35 else default

    def ids(most: int) -> list[int]:
        return rng.choice(vocab, int(rng.integers(1, most)), replace=False).tolist()

    adjustments = LogitsAdjustments(
        presence=maybe(float(rng.normal()), 0.0),
        frequency=maybe(float(rng.normal()), 0.0),
        repetition=maybe(float(rng.uniform(0.5, 2)), 1.0),
        bias=maybe({token: float(rng.normal() * 10) for token in ids(9)}, {}),
        allowed=maybe(tuple(sorted(ids(vocab // 2))), None),
        bad_words=maybe(tuple((token,) for token in ids(4)), ()),
    )
    if rng.random() < 0.2:
        first, second = ids(9), ids(9)
        adjustments = LogitsAdjustments(bad_words=tuple((a, b) for a in first for b in second))
    return TokenSampling(
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        temperature=float(rng.choice([0.0, 0.0, 0.7, 1.0, 2.0])),
        top_p=maybe(float(rng.uniform(0.05, 1)), 1.0),
        top_k=maybe(int(rng.choice([1, 3, 40, 2**31 - 1])), 0),
        min_p=maybe(float(rng.uniform(0, 0.3)), 0.0),
        logprobs=maybe(int(rng.choice([0, 1, 5, 20, 70])), None),
        min_tokens=maybe(2, 0),
        held_back=maybe((*ids(4), vocab + 3), ()),
        adjustments=maybe(adjustments, None),
        logprob_ids=maybe(tuple(ids(9)), ()),
    )
