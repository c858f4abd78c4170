"""Jobs of every kind, and a proposer that knows what comes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slots
from penstock_worker.speculation.drafting import Proposer
from tests.worker.driver import GREEDY, Job

SEEDED = TokenSampling(9, temperature=1.2, top_p=0.95, top_k=40)
PENALTIES = TokenSampling(
    4,
    temperature=0.9,
    logprobs=2,
    adjustments=LogitsAdjustments(0.6, 0.4, 1.3, bias={7: 1.5}, bad_words=((9,), (11, 12))),
)
EARLY = TokenSampling(5, temperature=1.0, min_tokens=9, held_back=(3, 4, 5), logprobs=0)
LONG = [at * at % 250 + 10 for at in range(70)]
WANTED = 24


def jobs(scope: bytes = b"") -> list[Job]:
    """One of each kind. Grammar 1 wants even and odd tokens in turn."""
    kinds = [
        Job([5, 6, 7, 8, 9], WANTED, GREEDY),
        Job(LONG, WANTED, SEEDED),
        Job(LONG, WANTED, SEEDED, index=1),
        Job([1, 2, 3] * 5, WANTED, PENALTIES),
        Job([30, 31], WANTED, EARLY),
        Job(list(range(40, 73)), WANTED, SEEDED, grammar=1),
        Job([1], WANTED, GREEDY, grammar=1),
    ]
    for job in kinds:
        job.scope = scope
    return kinds


class Oracle(Proposer):
    """Proposes the tokens that are to come, but for some that are wrong."""

    def __init__(self, slots: Slots, outputs: Sequence[Sequence[int]], wrong: float = 0.25) -> None:
        """`outputs`: prompt and tokens of each sequence, undisturbed. `wrong`: share of the ids."""
        self._slots = slots
        self._outputs = [list(output) for output in outputs]
        self._wrong = wrong
        self._random = np.random.default_rng(0)

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        return [self._of(work) for work in scheduled]

    def proposed(self, slot: int) -> int:
        return 4

    def _of(self, work: SlotWork) -> list[int]:
        known = self._slots[work.slot].token_ids
        if not work.draft or work.start + work.count < len(known):
            return []
        for output in self._outputs:
            if output[: len(known)] == known:
                right = output[len(known) : len(known) + work.draft]
                return [8 if self._random.random() < self._wrong else token for token in right]
        return []  # It has ended, and this was sent before that was known.
