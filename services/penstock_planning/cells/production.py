"""The production engine core as an engine of a cell, step by step."""

from __future__ import annotations

import math

import msgspec

from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock.protocol.to_frontend import Outputs
from penstock_engine.facts import EngineFacts
from penstock_planning.cells.asks import Ask
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.metrics import Metrics, Open, Slo
from penstock_planning.simulate.prompts import ANSWER, submit_of
from penstock_planning.simulate.replica import SimulatedReplica


def submission(ask: Ask) -> Submit:
    """What a gateway would submit of it now: with what its client has of the answer."""
    submit = submit_of(ask.request, ask.number)
    if not ask.moves:
        return submit
    emitted = OpenSequence(0, [ANSWER] * ask.emitted)
    return msgspec.structs.replace(submit, sequences=[emitted], resumed=True)


class _Heard(Metrics):
    """Also keeps what has ended since somebody looked."""

    def __init__(self) -> None:
        super().__init__(Slo(math.inf, math.inf))
        self.ended: list[int] = []

    def outputs(self, message: Outputs, requests: dict[int, Open], now: float) -> list[int]:
        ended = super().outputs(message, requests, now)
        self.ended += ended
        return ended

    def refuse(self, number: int, now: float) -> None:
        super().refuse(number, now)
        self.ended.append(number)


class ProductionEngine:
    """Behaves like ModelledEngine, by the code that serves."""

    __slots__ = ("_heard", "_replica", "_seen", "block_size", "due", "endpoint", "open")

    def __init__(self, endpoint: str, index: int, facts: EngineFacts, cost: StepCost) -> None:
        self.endpoint = endpoint
        self.block_size = facts.block_size
        self.due = math.inf
        self.open: dict[int, Ask] = {}
        self._heard = _Heard()
        self._replica = SimulatedReplica(index, facts, cost, self._heard)
        self._seen: dict[int, Open] = {}

    @property
    def load(self) -> int:
        """Requests that are open here."""
        return len(self.open)

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._replica.core.state.scheduling.num_steps

    def submit(self, ask: Ask, now: float) -> None:
        """A request comes, or goes on here."""
        self.open[ask.number] = ask
        seen = Open(ask.arrival, ask.length, ask.request.tenant)
        self._seen[ask.number] = seen
        self._replica.submit(submission(ask), seen, now)
        self._look(now)

    def advance(self, now: float) -> list[Ask]:
        """What is due has happened. Returns the requests that have ended."""
        if now >= self._replica.busy_until:
            self._replica.finish_step(now)
        else:
            self._replica.step(now)
        self._look(now)
        ended, self._heard.ended = self._heard.ended, []
        return [self._over(number) for number in ended]

    def lose(self, now: float) -> list[Ask]:
        """It is gone, and its KV. Returns what was open, with what each client has by now."""
        self.due = math.inf
        return [self._over(number) for number in list(self.open)]

    def _over(self, number: int) -> Ask:
        ask, seen = self.open.pop(number), self._seen.pop(number)
        if seen.tokens:
            if not ask.emitted:
                ask.first = seen.first
            ask.emitted += seen.tokens
            ask.last = seen.last
            if not ask.moves:
                ask.cached = seen.cached
        return ask

    def _look(self, now: float) -> None:
        """When it has to be looked at again."""
        self.due = self._replica.busy_until
        if self.open:
            deadline = self._replica.core.next_deadline()
            if deadline < self.due:
                self.due = max(deadline, now + 0.001)
