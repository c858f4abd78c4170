"""The steps that are rehearsed before a worker on a GPU is ready, so that none compiles a kernel.

Which variants of the kernels a step launches depends on its number of rows, on whether its
sequences have one new token, few or many, and on what its rows have besides. Limits between
variants by rows are powers of two, or between the smallest and the largest step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.protocol.to_worker import Setup
from penstock_worker.media.interface import BatchMedia


@dataclass(frozen=True)
class RehearsedStep:
    """A dummy step that only runs the kernels."""

    counts: np.ndarray
    """[sequences] int64, their new tokens."""
    adapted: bool = False
    """Whether all rows have an adapter."""
    media: BatchMedia | None = None


@dataclass(frozen=True)
class MediaSteps:
    """What batches of a model that takes media have besides their rows."""

    sections: bool
    """Positions of three numbers."""
    whole_spans: bool
    """Rows that see further than themselves."""

    def of(self, counts: np.ndarray) -> BatchMedia:
        """A batch without placeholders."""
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        at = np.arange(counts.sum()) - firsts
        return BatchMedia(
            rows=np.zeros(0, np.int64),
            embeddings=None,
            positions=np.stack([at] * 3) if self.sections else None,
            last_seen=at if self.whole_spans else None,
        )


def rehearsed_steps(
    setup: Setup, *, adapters: bool, media: MediaSteps | None
) -> Iterator[RehearsedStep]:
    """Steps of one sequence, each of twice as many tokens as the one before, and then of as many
    tokens as a step may have."""
    most = setup.max_num_batched_tokens
    for tokens in (*(1 << power for power in range(most.bit_length())), most):
        counts = step_of(setup, tokens)
        yield RehearsedStep(counts)
        if adapters:
            yield RehearsedStep(counts, adapted=True)
        if media is not None:
            yield RehearsedStep(counts, media=media.of(counts))


def step_of(setup: Setup, tokens: int) -> np.ndarray:
    """Returns the new tokens of sequences that have so many together, as few as may be. A step of
    all slots may have fewer."""
    whole, rest = divmod(tokens, setup.max_model_len)
    counts = [setup.max_model_len] * whole + [rest] * (rest > 0)
    return np.array(counts[: setup.max_num_seqs])
