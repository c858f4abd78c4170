"""A scheduling policy: shorter prompts first, among those that came in at about the same time."""

from __future__ import annotations

from penstock.config.settings import SchedulerSettings
from penstock_engine.policies.first_come import OneLine
from penstock_engine.policies.pace import pace_of
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.request import Sequence


class ShorterEarlier:
    """A prompt may be overtaken by shorter ones that came at most TURN requests later, so nobody
    starves. A sequence's key never changes: no clock, no randomness, no order of a hash."""

    TURN = 64

    def key(self, sequence: Sequence) -> tuple[int, ...]:
        request = sequence.request
        length = len(request.prompt_token_ids)
        return (request.arrival // self.TURN, length, request.arrival, sequence.index)


class ShortestFirst(OneLine):
    """`--scheduling-policy shortest-first`."""

    name = "shortest-first"

    @classmethod
    def make(cls, settings: SchedulerSettings, tenants: Tenants) -> ShortestFirst:
        return cls(ShorterEarlier(), pace_of(settings))
