"""The engine core that a test drives, without its peers' behaviour: the core itself, the clock that
the test moves by hand, and who is connected. Its methods look into the core: they say which request
a slot works for, and check the core's books against what the front ends were told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any

import msgspec

from penstock.protocol.from_frontend import Submit
from penstock.protocol.to_worker import Plan
from penstock_engine.core import EngineCore
from penstock_engine.facts import EngineFacts
from penstock_engine.policies.fair import FairShare
from penstock_engine.request.request import Request
from penstock_engine.sessions.frontends import NOBODY
from tests.engine.fake_worker import FakeWorker
from tests.engine.pool_capacity import longest_of
from tests.engine.scores import Front, RequestScore, SequenceScore
from tests.engine.small_facts import facts


def _replayed(request: Request) -> RequestScore:
    """A request that audits made. Nobody else may use what it computes, nor it what others did."""
    prompt = request.prompt_token_ids.tolist()
    submit = Submit(request.number, request.name, prompt, [], request.sampling, request.stopping)
    salt = f"audit {request.number}"
    return RequestScore(msgspec.structs.replace(submit, cache_salt=salt), None)


class CoreUnderTest(ABC):
    """What the two sides of a Harness share. options: of `facts`, where no facts are given."""

    def __init__(self, engine_facts: EngineFacts | None = None, **options: Any) -> None:
        self.facts = engine_facts or facts(**options)
        self.core = EngineCore(self.facts)
        self.now = 100.0
        """The fake clock, in seconds: it stands still until a test moves it."""
        self.fronts: list[Front] = []
        self.worker: FakeWorker | None = None
        """The one that is ready."""
        self.digest = ""
        """The digest of the weights that a worker was told to load last."""
        self.claims: dict[bytes, RequestScore] = {}
        """The first request with each claim."""
        self._sessions = 0

    @abstractmethod
    def settle(self) -> None:
        """Lets the core step, and both sides take what it sends."""

    def _new_session(self) -> bytes:
        self._sessions += 1
        return self._sessions.to_bytes(16, "big")

    def _front_of(self, session: bytes) -> Front:
        return next(front for front in self.fronts if front.session == session)

    @property
    def capacity(self) -> int | None:
        """Tokens of the longest sequence that the worker has room for; None without a worker."""
        if self.worker is None:
            return None
        return longest_of(
            self.worker.groups, self.worker.num_blocks, self.facts.config.cache.kv_block_size
        )

    # ---- whose slots they are

    def _score(self, slot: int) -> SequenceScore:
        return self._asked(slot).sequences[self.core.state.scheduling.running[slot].index]

    def _asked(self, slot: int) -> RequestScore:
        """The request that a running slot works on."""
        sequence = self.core.state.scheduling.running[slot]
        request, index = sequence.request, sequence.index
        if request.internal:
            return _replayed(request)
        if request.session == NOBODY:
            assert request.kept is not None
            claimed = [self.claims[claim] for claim in request.kept.claims]
            return next(each for each in claimed if index in each.sequences)
        if request.readers:
            first = next(each for each in request.readers if index in each.open)
            return self._front_of(first.session).requests[first.number]
        return self._front_of(request.session).requests[request.number]

    def _is_internal(self, slot: int) -> bool:
        """Whether a running slot works on what no front end asked for."""
        return self.core.state.scheduling.running[slot].request.internal

    def _encoded_for(self, plan: Plan) -> list[int]:
        """Slots of those that have come to an item that the plan has encoded, or a part of it."""
        names = {*plan.encode, *(part.name for part in plan.partly)}
        if not names:
            return []
        step = next(s for s in self.core.state.scheduling.in_flight if s.number == plan.step)
        found, owed = list(step.media.needed_by), set(names)
        for sequence in found:
            assert sequence.request.media is not None
            mine = names & sequence.request.media.numbers.keys()
            assert mine
            owed -= mine
        assert not owed, "an item is encoded for nobody who runs"
        return [sequence.slot for sequence in found if sequence.slot is not None]

    def _in_slots(self) -> set[tuple[bytes, int]]:
        """(session, number) of each open request of which some is in a slot."""
        scheduler = self.core.state.scheduling
        held = [*scheduler.running.values(), *scheduler.marked.values()]
        open_ones = [s.request for s in held if not s.request.ended]
        readers = {(each.session, each.number) for r in open_ones for each in r.readers}
        return readers | {(each.session, each.number) for each in open_ones}

    # ---- the books

    def _check_accounts(self) -> None:
        """A tenant has an account for as long as it has sequences; nobody else has."""
        scheduler = self.core.state.scheduling
        if not isinstance(scheduler.policy, FairShare):
            return
        running = [s.request for s in scheduler.running.values() if not s.request.internal]
        live = Counter(request.tenant for request in running)
        live += Counter(s.request.tenant for s in scheduler.queue.sequences())
        live += Counter(s.request.tenant for s in self.core.state.media.parked())
        live += Counter(s.request.tenant for s in self.core.state.adapters.parked())
        accounts = scheduler.policy.accounts
        assert {a.name: a.open for a in accounts.all()} == dict(live)
        waiting = Counter(s.request.tenant for s in scheduler.queue.sequences())
        assert {a.name: a.num_waiting for a in accounts.all() if a.num_waiting} == dict(waiting)
        assert accounts.num_waiting == len(waiting)

    def _check_unbegun(self) -> None:
        """Other weights: of what is open, nobody has seen anything."""
        for front in self.fronts:
            for request in front.requests.values():
                if request.rejected is not None or request.nothing_since_a_trial:
                    continue
                begun = any(
                    score.tokens or (score.terminal is not None and not score.finished_by_us)
                    for score in request.sequences.values()
                )
                assert request.over or not begun, "two sets of weights"
