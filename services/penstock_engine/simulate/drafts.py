"""Drafts of a simulated worker: so many at a time, each of them right with the same chance."""

from __future__ import annotations

import random

from penstock.errors import InvalidRequest
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import SlotWork
from penstock_engine.speculation.draft_policy import MAX_DRAFTS


class SimulatedDrafts:
    """tokens: drafts that there are for every sequence at any time; 0: none.  acceptance: the
    chance of each to be right if those before it are, drawn from `seed`."""

    __slots__ = ("_acceptance", "_random", "tokens")

    def __init__(self, tokens: int = 0, acceptance: float = 0.0, seed: int = 0) -> None:
        if not 0 <= tokens <= MAX_DRAFTS:
            raise InvalidRequest(f"0 to {MAX_DRAFTS} tokens can be drafted, not {tokens}")
        if not 0.0 <= acceptance <= 1.0:
            raise InvalidRequest(f"acceptance must be in 0 to 1, not {acceptance:g}")
        self.tokens = tokens
        self._acceptance = acceptance
        self._random = random.Random(seed)

    def answer(self, work: SlotWork, token: int) -> SlotResult:
        """The result of work that samples: as if all that is sampled were the same token."""
        kept, draw, acceptance = 0, self._random.random, self._acceptance
        while kept < work.draft and draw() < acceptance:
            kept += 1
        return SlotResult(
            work.slot,
            token,
            more=[token] * kept,
            drafted=work.draft,
            proposed=self.tokens,
            guessed=None if work.draft else draw() < acceptance,
        )
